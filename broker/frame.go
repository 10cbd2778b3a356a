package broker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// headSize is what every request begins with: API key, version, correlation id.
const headSize = 8

// refusedWait is how long more of a refused request is waited for, to tell in the log who sent it.
const refusedWait = 50 * time.Millisecond

// A refusal ends a connection with one log line.
type refusal struct {
	why string // a constant, for metrics
	msg string // for people
}

func (r *refusal) Error() string { return r.msg }

func refuse(why, format string, args ...any) *refusal {
	return &refusal{why: why, msg: fmt.Sprintf(format, args...)}
}

// frame is one request as it came.
type frame struct {
	key, version int16
	corr         int32
	body         []byte // after the head
	held         int64  // bytes taken from the server's budget
}

// frameReader reads frames from one connection. deadline sets the connection's read deadline.
type frameReader struct {
	in       *bufio.Reader
	deadline func(time.Time) error
	idle     time.Duration
	timeout  time.Duration
	budget   *budget
	// most is the largest size of any frame, 0 for no such limit: what is larger is refused without waiting for more of it.
	most int
	// limit returns the largest size of a request's frame, or a refusal.
	limit func(key, version int16) (int, error)
	buf   []byte // reused for small frames: bodies live until the next call of next
}

// next reads one frame. It allocates for what has arrived, never for what is announced. The caller gives frame.held back to
// the budget once the body is no longer used, and not later than the next call. Errors: *refusal, io.EOF between frames, others of
// the connection.
func (r *frameReader) next(ctx context.Context) (frame, error) {
	if err := r.deadline(time.Now().Add(r.idle)); err != nil {
		return frame{}, err
	}
	var head [4 + headSize]byte
	if n, err := io.ReadFull(r.in, head[:4]); err != nil {
		if n == 0 {
			return frame{}, err // between frames
		}
		return frame{}, cutOff(err)
	}
	size := int(int32(binary.BigEndian.Uint32(head[:])))
	if size < headSize {
		return frame{}, refuse("frame size", "a frame of %d bytes is no Kafka request (garbage, or another protocol)", size)
	}
	tooLarge := r.most > 0 && size > r.most
	wait := r.timeout
	if tooLarge {
		wait = refusedWait // its head can only tell who it is
	}
	if r.in.Buffered() < size { // else it has ended already
		if err := r.deadline(time.Now().Add(wait)); err != nil {
			return frame{}, err
		}
	}
	if _, err := io.ReadFull(r.in, head[4:]); err != nil {
		if tooLarge {
			return frame{}, refuse("frame size", "a frame of %d bytes; at most %d are accepted (garbage, or another protocol)", size, r.most)
		}
		return frame{}, cutOff(err)
	}
	f := frame{
		key:     int16(binary.BigEndian.Uint16(head[4:])),
		version: int16(binary.BigEndian.Uint16(head[6:])),
		corr:    int32(binary.BigEndian.Uint32(head[8:])),
	}
	limit, err := r.limit(f.key, f.version)
	if err != nil {
		// The client id says who it is; it may not be there.
		f.body = r.peek(size - headSize)
		return f, err
	}
	if size > limit {
		f.body = r.peek(size - headSize)
		return f, refuse("frame size", "a frame of %d bytes; at most %d are accepted for this request", size, limit)
	}
	err = r.body(ctx, &f, size-headSize)
	return f, err
}

// peek returns what little of a refused request is there already.
func (r *frameReader) peek(n int) []byte {
	if err := r.deadline(time.Now().Add(refusedWait)); err != nil {
		return nil
	}
	b := make([]byte, min(n, 256))
	got, _ := io.ReadAtLeast(r.in, b, min(len(b), 2))
	return b[:got]
}

func (r *frameReader) body(ctx context.Context, f *frame, n int) error {
	if n <= smallFrame {
		if f.key == produceKey { // records are handed on
			f.body = make([]byte, n)
			_, err := io.ReadFull(r.in, f.body)
			return cutOff(err)
		}
		if cap(r.buf) < n {
			r.buf = make([]byte, max(n, 4<<10))
		}
		f.body = r.buf[:n]
		_, err := io.ReadFull(r.in, f.body)
		return cutOff(err)
	}
	b := make([]byte, smallFrame)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return cutOff(err)
	}
	if err := r.budget.take(ctx, int64(n)); err != nil {
		return err
	}
	f.held = int64(n)
	if err := r.deadline(time.Now().Add(r.timeout + time.Duration(n>>20)*time.Second)); err != nil {
		return err
	}
	for len(b) < n {
		have := len(b)
		grown := make([]byte, min(2*have, n))
		if 8*have >= n {
			grown = make([]byte, n) // an eighth has come: the peer means it
		}
		copy(grown, b)
		if _, err := io.ReadFull(r.in, grown[have:]); err != nil {
			return cutOff(err)
		}
		b = grown
	}
	f.body = b
	return nil
}

// cutOff is the error of a frame that has begun and does not end.
func cutOff(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse("truncated", "a frame began and did not end in time")
	}
	return refuse("truncated", "the connection ended in the middle of a frame")
}

// parseHeader reads the rest of a request's header: client id and, if flexible, tags, which are ignored.
func parseHeader(body []byte, flexible bool) (clientID string, rest []byte, err error) {
	if len(body) < 2 {
		return "", nil, errHeader
	}
	n := int(int16(binary.BigEndian.Uint16(body)))
	rest = body[2:]
	if n > 0 {
		if n > len(rest) {
			return "", nil, errHeader
		}
		clientID, rest = string(rest[:n]), rest[n:]
	}
	if !flexible {
		return clientID, rest, nil
	}
	tags, rest, ok := uvarint(rest)
	for ; ok && tags > 0; tags-- {
		var size uint32
		if _, rest, ok = uvarint(rest); !ok {
			break
		}
		if size, rest, ok = uvarint(rest); !ok || int64(size) > int64(len(rest)) {
			ok = false
			break
		}
		rest = rest[size:]
	}
	if !ok {
		return clientID, nil, errHeader
	}
	return clientID, rest, nil
}

var errHeader = errors.New("the request's header is cut off")

func uvarint(b []byte) (uint32, []byte, bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 || n > 5 || v > 1<<32-1 {
		return 0, nil, false
	}
	return uint32(v), b[n:], true
}

package broker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// tape is a connection that plays bytes and then ends.
type tape struct {
	in  *bytes.Reader
	out int
}

func (t *tape) Read(b []byte) (int, error)         { return t.in.Read(b) }
func (t *tape) Write(b []byte) (int, error)        { t.out += len(b); return len(b), nil }
func (t *tape) Close() error                       { return nil }
func (t *tape) LocalAddr() net.Addr                { return &net.TCPAddr{} }
func (t *tape) RemoteAddr() net.Addr               { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (t *tape) SetDeadline(time.Time) error        { return nil }
func (t *tape) SetReadDeadline(_ time.Time) error  { return nil }
func (t *tape) SetWriteDeadline(_ time.Time) error { return nil }

var _ net.Conn = (*tape)(nil)

func quiet(t testing.TB) *Server {
	meta := newMeta(t)
	meta.register(t, 1, "127.0.0.1:9092")
	meta.must(t, createT())
	meta.err = errors.New("nothing changes while fuzzing")
	s, err := New(Config{ID: 1}, Deps{Views: meta, Proposer: meta, Partitions: newPartitions(meta), Groups: meta})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// FuzzConnection plays any bytes to a whole connection: frame reader, header, every decoder, every handler, every encoder.
func FuzzConnection(f *testing.F) {
	s := quiet(f)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(append(head(8+5, 18, 127), 0, 3, 'c', 'l', 'i'))
	f.Add(frameOf(produceOne(7, -1, "t", 0, batch(f, "one")), 1))
	f.Add(frameOf(fetchOne(3, "t", 0, 10, 1), 1))
	for _, l := range goldenLines(f) {
		if _, ok := s.apis[l.key]; ok && l.kind == "request" {
			f.Add(frameOf(l.message().(kmsg.Request), 1))
			m := l.message().(kmsg.Request)
			if err := m.ReadFrom(l.bytes); err != nil {
				f.Fatal(err)
			}
			f.Add(frameOf(m, 1))
		}
	}
	for i := range s.sorted { // newest versions, which have tags
		f.Add(frameOf(s.sorted[i].newRequest(s.sorted[i].max), 1))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		newConn(s, &tape{in: bytes.NewReader(data)}, "PLAINTEXT").serve(context.Background())
		s.budget.mu.Lock()
		defer s.budget.mu.Unlock()
		if s.budget.free != s.cfg.QueuedMaxBytes {
			t.Fatalf("%d bytes of budget are not given back", s.cfg.QueuedMaxBytes-s.budget.free)
		}
	})
}

// FuzzProduceCheck: whatever decodes passes the check that comes before, unless it is too large.
func FuzzProduceCheck(f *testing.F) {
	for _, v := range []int16{0, 3, 9} {
		f.Add(v, produceOne(v, 1, "t", 0, []byte("records")).AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 0 || version > produceAPI.max {
			return
		}
		req := kmsg.NewPtrProduceRequest()
		req.Version = version
		if req.ReadFrom(body) == nil && len(body) < maxProduceParts {
			if err := checkProduce(version, body); err != nil {
				t.Fatalf("it decodes, but the check says %v", err)
			}
		}
	})
}

// FuzzFrames: the reader returns what was framed, however it is cut.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("body"), uint8(3))
	f.Fuzz(func(t *testing.T, body []byte, cut uint8) {
		framed := append(head(uint32(headSize+len(body)), 3, 1), body...)
		fr := frameReader{
			in: bufio.NewReader(&chunks{b: framed, n: int(cut)%7 + 1}), deadline: func(time.Time) error { return nil }, budget: newBudget(1 << 30),
			limit: func(int16, int16) (int, error) { return 1 << 30, nil },
		}
		got, err := fr.next(context.Background())
		if err != nil || got.key != 3 || got.version != 1 || got.corr != 9 || !bytes.Equal(got.body, body) {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := fr.next(context.Background()); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last frame: %v", err)
		}
	})
}

// A frame that has come whole sets no deadline of its own; one that lacks a byte does.
func TestFrameDeadlines(t *testing.T) {
	framed := append(head(uint32(headSize+20), 3, 1), make([]byte, 20)...)
	for n, want := range map[int]int{len(framed): 1, len(framed) - 1: 2, len(framed) - 8: 2, 4: 2, 3: 2} {
		set := 0
		fr := frameReader{
			in: bufio.NewReader(&chunks{b: bytes.Clone(framed), n: n}), deadline: func(time.Time) error { set++; return nil }, budget: newBudget(1 << 30),
			limit: func(int16, int16) (int, error) { return 1 << 30, nil },
		}
		if _, err := fr.next(context.Background()); err != nil || set != want {
			t.Errorf("in pieces of %d bytes: %d deadlines, want %d (%v)", n, set, want, err)
		}
	}
}

// chunks gives n bytes at a time.
type chunks struct {
	b []byte
	n int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.n)], c.b)
	c.b = c.b[n:]
	return n, nil
}

// FuzzHandlers gives any body to a decoder, and what decodes to its handler; the answer must be readable.
func FuzzHandlers(f *testing.F) {
	s := quiet(f)
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nobody waits
	for _, l := range goldenLines(f) {
		if _, ok := s.apis[l.key]; ok && l.kind == "request" {
			f.Add(l.key, l.version, append([]byte{0, 1, 'c'}, l.bytes...))
		}
	}
	for i := range s.sorted {
		req := s.sorted[i].newRequest(s.sorted[i].max)
		b := []byte{0, 1, 'c'}
		if req.IsFlexible() {
			b = append(b, 0)
		}
		f.Add(s.sorted[i].key, s.sorted[i].max, req.AppendTo(b))
	}
	f.Add(int16(0), int16(7), append([]byte{0, 1, 'c'}, produceOne(7, 1, "t", 0, batch(f, "x")).AppendTo(nil)...))
	f.Add(int16(1), int16(2), append([]byte{0, 1, 'c'}, fetchOne(2, "t", 0, 1, 1).AppendTo(nil)...))
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		a, ok := s.apis[key]
		if !ok || version < 0 || version > a.max {
			return
		}
		cl := &call{api: a, version: version, corr: 7, listener: "PLAINTEXT"}
		req, err := decode(a, &frame{key: key, version: version, body: body}, cl)
		if err != nil {
			return
		}
		resp := a.start(ctx, s, cl, req).run(ctx)
		if resp == nil {
			if p, ok := req.(*kmsg.ProduceRequest); !ok || p.Acks != 0 {
				t.Fatalf("no answer to %s v%d", a.name, version)
			}
			return
		}
		out := appendResponse(nil, cl, resp)[8:]
		if resp.IsFlexible() && key != apiVersionsKey {
			out = out[1:]
		}
		if err := req.ResponseKind().ReadFrom(out); err != nil {
			t.Fatalf("the answer to %s v%d cannot be read: %v", a.name, version, err)
		}
	})
}

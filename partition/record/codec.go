package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/snappy/xerial"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is a compression type as the attributes spell it.
type Codec int8

// The codecs.
const (
	None   Codec = 0
	Gzip   Codec = 1
	Snappy Codec = 2
	LZ4    Codec = 3
	Zstd   Codec = 4
)

func (c Codec) String() string {
	switch c {
	case None:
		return "none"
	case Gzip:
		return "gzip"
	case Snappy:
		return "snappy"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("codec(%d)", int8(c))
}

// DefaultMaxUnpacked bounds the unpacked size of one batch: 100 MiB, as much as a request may have.
const DefaultMaxUnpacked = 100 << 20

// minUnpacked is the first buffer that something is unpacked into.
const minUnpacked = 16 << 10

// Codecs packs and unpacks batches. It keeps buffers and codec state between calls: one goroutine at a time; its results that
// are documented so live until its next use.
type Codecs struct {
	maxUnpacked int

	unpacked []byte // result of decompress
	scratch  []byte // records before compress

	gzipReader *gzip.Reader
	gzipWriter *gzip.Writer
	lz4Reader  *lz4.Reader
	lz4Writer  *lz4.Writer
	zstdReader *zstd.Decoder
	zstdWriter *zstd.Encoder
}

// keepBuffer is the largest buffer kept between calls: one huge batch does not stay for ever.
const keepBuffer = 4 << 20

// NewCodecs makes codecs that refuse to unpack a batch to more than maxUnpacked bytes (0: DefaultMaxUnpacked).
func NewCodecs(maxUnpacked int) *Codecs {
	if maxUnpacked <= 0 {
		maxUnpacked = DefaultMaxUnpacked
	}
	return &Codecs{maxUnpacked: maxUnpacked}
}

func tooLarge(size, limit int) error {
	return fmt.Errorf("%w: %d bytes, limit is %d", ErrTooLarge, size, limit)
}

// decompress unpacks into c.unpacked. magic decides how LZ4's header is read.
func (c *Codecs) decompress(codec Codec, magic int8, src []byte) (out []byte, err error) {
	if cap(c.unpacked) > keepBuffer {
		c.unpacked = nil
	}
	switch codec {
	case Gzip:
		out, err = c.gunzip(src)
	case Snappy:
		out, err = c.unsnappy(src)
	case LZ4:
		out, err = c.unlz4(magic, src)
	case Zstd:
		out, err = c.unzstd(src)
	default:
		return nil, fmt.Errorf("%w: %v", ErrUnsupportedCompression, codec)
	}
	if err == nil && len(out) > c.maxUnpacked {
		err = fmt.Errorf("%w: unpacks to more than %d bytes", ErrTooLarge, c.maxUnpacked)
	}
	if err == nil {
		c.unpacked = out
		return out, nil
	}
	c.gzipReader, c.lz4Reader = nil, nil // their state after an error is nobody's promise
	if _, ours := Code(err); !ours {
		err = fmt.Errorf("%w: %v does not unpack: %w", ErrCorrupt, codec, err)
	}
	return nil, err
}

// readAll drains r into c.unpacked and stops one byte past the cap. It grows by doubling, but never past that byte: what
// unpacks to far more costs one and a half times the cap, not three or four.
func (c *Codecs) readAll(r io.Reader) ([]byte, error) {
	buf := c.unpacked[:0]
	for len(buf) <= c.maxUnpacked {
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(max(2*cap(buf), minUnpacked), c.maxUnpacked+1))
			copy(grown, buf)
			buf = grown
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), c.maxUnpacked+1)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}

func (c *Codecs) gunzip(src []byte) (out []byte, err error) {
	in := bytes.NewReader(src)
	if c.gzipReader == nil {
		c.gzipReader, err = gzip.NewReader(in)
	} else {
		err = c.gzipReader.Reset(in)
	}
	if err != nil {
		c.gzipReader = nil
		return nil, err
	}
	return c.readAll(c.gzipReader)
}

// unsnappy takes both forms: raw, as librdkafka and Go clients write, and xerial's framing, as JVM clients do.
func (c *Codecs) unsnappy(src []byte) ([]byte, error) {
	size, err := snappySize(src)
	if err != nil {
		return nil, err
	}
	if size > c.maxUnpacked {
		return nil, tooLarge(size, c.maxUnpacked)
	}
	dst := c.unpacked
	if cap(dst) < size || dst == nil {
		dst = make([]byte, 0, max(size, 512))
	}
	return xerial.DecodeCapped(dst[:0], src)
}

const xerialHeaderSize = 16

var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

// snappySize sums what the blocks announce, so that nothing is allocated for a lie beyond the cap.
func snappySize(src []byte) (int, error) {
	if !bytes.HasPrefix(src, xerialMagic) {
		return s2.DecodedLen(src)
	}
	if len(src) < xerialHeaderSize {
		return 0, xerial.ErrMalformed
	}
	total := 0
	for p := src[xerialHeaderSize:]; len(p) > 0; {
		if len(p) < 4 {
			return 0, xerial.ErrMalformed
		}
		n := int64(binary.BigEndian.Uint32(p))
		p = p[4:]
		if n > int64(len(p)) {
			return 0, xerial.ErrMalformed
		}
		size, err := s2.DecodedLen(p[:n])
		if err != nil {
			return 0, err
		}
		total += size
		p = p[n:]
	}
	return total, nil
}

func (c *Codecs) unzstd(src []byte) (out []byte, err error) {
	if c.zstdReader == nil {
		c.zstdReader, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(c.maxUnpacked)),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
	}
	out, err = c.zstdReader.DecodeAll(src, c.unpacked[:0])
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return nil, fmt.Errorf("%w: unpacks to more than %d bytes", ErrTooLarge, c.maxUnpacked)
	}
	return out, err
}

// compress appends the packed form of src to dst. Snappy is xerial-framed whatever the magic: old JVM clients read nothing else,
// and all others read it.
func (c *Codecs) compress(dst []byte, codec Codec, magic int8, src []byte) ([]byte, error) {
	if cap(c.scratch) > keepBuffer {
		defer func() { c.scratch = nil }()
	}
	switch codec {
	case Gzip:
		return c.gzip(dst, src)
	case Snappy:
		// Encode would take a non-empty dst for a frame that it began itself.
		return append(dst, xerial.Encode(nil, src)...), nil
	case LZ4:
		return c.lz4(dst, magic, src)
	case Zstd:
		return c.zstd(dst, src)
	}
	return nil, fmt.Errorf("%w: %v", ErrUnsupportedCompression, codec)
}

func (c *Codecs) gzip(dst, src []byte) ([]byte, error) {
	out := bytes.NewBuffer(dst)
	if c.gzipWriter == nil {
		c.gzipWriter = gzip.NewWriter(out)
	} else {
		c.gzipWriter.Reset(out)
	}
	if _, err := c.gzipWriter.Write(src); err != nil {
		return nil, err
	}
	if err := c.gzipWriter.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (c *Codecs) zstd(dst, src []byte) (out []byte, err error) {
	if c.zstdWriter == nil {
		// The window of Kafka's own default level fits every reader.
		c.zstdWriter, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(2<<20), zstd.WithLowerEncoderMem(true))
		if err != nil {
			return nil, err
		}
	}
	return c.zstdWriter.EncodeAll(src, dst), nil
}

package record

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/bits"

	"github.com/pierrec/lz4/v4"
)

// An LZ4 frame starts with a magic, a descriptor (flags, block size, optional content size) and a byte of the descriptor's
// XXH32. Kafka's first implementation hashed the frame magic too; magic 0 keeps that fault for ever (KAFKA-3160), and its readers
// take any value there.
const (
	lz4FrameMagic      = 0x184D2204
	lz4FlagContentSize = 0x08
)

// lz4HeaderSize is the size of frame magic and descriptor without the checksum byte.
func lz4HeaderSize(src []byte) (int, bool) {
	if len(src) < 7 || binary.LittleEndian.Uint32(src) != lz4FrameMagic {
		return 0, false
	}
	n := 6
	if src[4]&lz4FlagContentSize != 0 {
		n += 8
	}
	return n, len(src) > n
}

func (c *Codecs) unlz4(magic int8, src []byte) ([]byte, error) {
	var in io.Reader = bytes.NewReader(src)
	if n, ok := lz4HeaderSize(src); ok && magic == 0 {
		var fixed [15]byte
		copy(fixed[:], src[:n])
		fixed[n] = byte(xxh32(src[4:n]) >> 8)
		in = io.MultiReader(bytes.NewReader(fixed[:n+1]), bytes.NewReader(src[n+1:]))
	}
	if c.lz4Reader == nil {
		c.lz4Reader = lz4.NewReader(in)
		if err := c.lz4Reader.Apply(lz4.ConcurrencyOption(1)); err != nil {
			return nil, err
		}
	} else {
		c.lz4Reader.Reset(in)
	}
	return c.readAll(c.lz4Reader)
}

// lz4 packs as Kafka's KafkaLZ4BlockOutputStream does: independent blocks of 64 KiB, no checksums but the header's.
func (c *Codecs) lz4(dst []byte, magic int8, src []byte) ([]byte, error) {
	start := len(dst)
	out := bytes.NewBuffer(dst)
	if c.lz4Writer == nil {
		c.lz4Writer = lz4.NewWriter(out)
		err := c.lz4Writer.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false), lz4.BlockChecksumOption(false),
			lz4.ConcurrencyOption(1))
		if err != nil {
			return nil, err
		}
	} else {
		c.lz4Writer.Reset(out)
	}
	if _, err := c.lz4Writer.Write(src); err != nil {
		return nil, err
	}
	if err := c.lz4Writer.Close(); err != nil {
		return nil, err
	}
	dst = out.Bytes()
	if n, ok := lz4HeaderSize(dst[start:]); ok && magic == 0 {
		frame := dst[start:]
		frame[n] = byte(xxh32(frame[:n]) >> 8)
	}
	return dst, nil
}

// xxh32 is XXH32 with seed 0 (xxhash spec, Yann Collet), for the few bytes of a frame header.
func xxh32(p []byte) uint32 {
	const (
		p1 = 2654435761
		p2 = 2246822519
		p3 = 3266489917
		p4 = 668265263
		p5 = 374761393
	)
	size := uint32(len(p))
	h := uint32(p5)
	if len(p) >= 16 {
		p1v := uint32(p1) // a variable: constants may not overflow
		lanes := [4]uint32{p1v + p2, p2, 0, -p1v}
		for ; len(p) >= 16; p = p[16:] {
			for i := range lanes {
				lanes[i] = bits.RotateLeft32(lanes[i]+binary.LittleEndian.Uint32(p[4*i:])*p2, 13) * p1
			}
		}
		h = bits.RotateLeft32(lanes[0], 1) + bits.RotateLeft32(lanes[1], 7) + bits.RotateLeft32(lanes[2], 12) +
			bits.RotateLeft32(lanes[3], 18)
	}
	h += size
	for ; len(p) >= 4; p = p[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(p)*p3, 17) * p4
	}
	for _, b := range p {
		h = bits.RotateLeft32(h+uint32(b)*p5, 11) * p1
	}
	h = (h ^ h>>15) * p2
	h = (h ^ h>>13) * p3
	return h ^ h>>16
}

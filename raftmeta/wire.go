package raftmeta

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Answers of MethodForward and MethodRaw begin with one of these.
const (
	answerTaken byte = iota
	answerNotLeader
)

var errBadRequest = errors.New("raftmeta: malformed request")

func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("raftmeta: %T does not encode: %v", m, err))
	}
	return b
}

func encodeBatch(b batch) []byte {
	out := make([]byte, 0, 24+len(b.chunk))
	out = binary.BigEndian.AppendUint64(out, b.lane)
	out = binary.BigEndian.AppendUint64(out, b.first)
	out = binary.BigEndian.AppendUint64(out, b.last)
	return append(out, b.chunk...)
}

// decodeBatch checks what a peer sent before it can reach the log: an entry that Apply does not understand stops every
// node. Bodies are checked by kind only; they come from the same code that decodes them.
func decodeBatch(p []byte) (b batch, err error) {
	if len(p) < 24 {
		return b, fmt.Errorf("%w: batch of %d bytes", errBadRequest, len(p))
	}
	b = batch{binary.BigEndian.Uint64(p), binary.BigEndian.Uint64(p[8:]), binary.BigEndian.Uint64(p[16:]), p[24:]}
	seq := b.first
	for rest := b.chunk; len(rest) > 0; seq++ {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 || num != fieldCommands || typ != protowire.BytesType {
			return b, fmt.Errorf("%w: command %d of lane %d", errBadRequest, seq, b.lane)
		}
		cmd, m := protowire.ConsumeBytes(rest[n:])
		if m < 0 {
			return b, fmt.Errorf("%w: command %d of lane %d is cut", errBadRequest, seq, b.lane)
		}
		if err := checkCommand(cmd, b.lane, seq); err != nil {
			return b, err
		}
		rest = rest[n+m:]
	}
	if b.lane == 0 || b.first == 0 || seq != b.last+1 {
		return b, fmt.Errorf("%w: batch says %d..%d of lane %d, holds up to %d", errBadRequest, b.first, b.last, b.lane, seq-1)
	}
	return b, nil
}

var knownBodies = func() map[protowire.Number]bool {
	m := map[protowire.Number]bool{}
	fields := (&statepb.Command{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Kind() == protoreflect.MessageKind {
			m[f.Number()] = true
		}
	}
	return m
}()

// checkCommand reads the envelope of an encoded Command.
func checkCommand(b []byte, lane, seq uint64) error {
	var version, gotLane, gotSeq uint64
	body := false
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: command %d of lane %d: %w", errBadRequest, seq, lane, protowire.ParseError(n))
		}
		b = b[n:]
		if typ == protowire.VarintType && num <= fieldTerm {
			v, m := protowire.ConsumeVarint(b)
			if m < 0 {
				return fmt.Errorf("%w: command %d of lane %d: %w", errBadRequest, seq, lane, protowire.ParseError(m))
			}
			switch num {
			case fieldVersion:
				version = v
			case fieldLane:
				gotLane = v
			case fieldSeq:
				gotSeq = v
			}
			b = b[m:]
			continue
		}
		m := protowire.ConsumeFieldValue(num, typ, b)
		if m < 0 || typ != protowire.BytesType || !knownBodies[num] {
			return fmt.Errorf("%w: command %d of lane %d has field %d that this build does not know", errBadRequest, seq, lane, num)
		}
		body = body || num >= 16 // 7 is the origin
		b = b[m:]
	}
	if version != state.CommandVersion || gotLane != lane || gotSeq != seq || !body {
		return fmt.Errorf("%w: command %d of lane %d: version %d, lane %d, number %d", errBadRequest, seq, lane, version, gotLane, gotSeq)
	}
	return nil
}

// EncodeJoin is the payload of MethodJoin: take this node in.
func EncodeJoin(s Server) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(s.ID)))
	return append(append(b, s.ID...), s.Addr...)
}

func decodeJoin(p []byte) (Server, error) {
	if len(p) < 2 {
		return Server{}, fmt.Errorf("%w: join of %d bytes", errBadRequest, len(p))
	}
	n := int(binary.BigEndian.Uint16(p))
	if n == 0 || len(p) <= 2+n || len(p) > 2+n+512 {
		return Server{}, fmt.Errorf("%w: join of %d bytes", errBadRequest, len(p))
	}
	return Server{ID: id.DirectoryID(p[2 : 2+n]), Addr: string(p[2+n:])}, nil
}

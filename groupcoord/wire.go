package groupcoord

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/groupcoord/core"
)

// A request of Method is a byte of flags, for how many ms its client's node has asked already (uint32), and a statepb.Command, or with
// flagKafka
//
//	key int16 | version int16 | client id, host, nonce: each with its length as int16 | Kafka's body of that version
//
// answered by a statepb.Result, or by the index of the coordinator's view (int64) and Kafka's body.
const (
	flagRepeat = 1 << iota // an earlier coordinator may have carried it out
	flagKafka
)

const (
	headLength   = 1 + 4
	heartbeatKey = 12
)

// head is what precedes a request's body.
func head(flags byte, waited time.Duration) []byte {
	return binary.BigEndian.AppendUint32([]byte{flags}, uint32(min(waited.Milliseconds(), math.MaxUint32)))
}

func decodeHead(b []byte) (flags byte, waited time.Duration, body []byte, err error) {
	if len(b) < headLength {
		return 0, 0, nil, errShort
	}
	return b[0], time.Duration(binary.BigEndian.Uint32(b[1:])) * time.Millisecond, b[headLength:], nil
}

func encodeKafka(clientID, host, nonce string, req kmsg.Request) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(req.Key()))
	b = binary.BigEndian.AppendUint16(b, uint16(req.GetVersion()))
	for _, s := range []string{clientID, host, nonce} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	return req.AppendTo(b)
}

var errShort = errors.New("cut short")

func decodeKafka(b []byte) (*core.KafkaRequest, error) {
	if len(b) < 4 {
		return nil, errShort
	}
	key, version := int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:]))
	b = b[4:]
	var parts [3]string
	for i := range parts {
		if len(b) < 2 || len(b) < 2+int(binary.BigEndian.Uint16(b)) {
			return nil, errShort
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		parts[i], b = string(b[2:n]), b[n:]
	}
	req := kmsg.RequestForKey(key)
	if req == nil || version < 0 || version > req.MaxVersion() {
		return nil, fmt.Errorf("key %d version %d is no request", key, version)
	}
	req.SetVersion(version)
	if err := req.ReadFrom(b); err != nil {
		return nil, err
	}
	return &core.KafkaRequest{Body: req, ClientID: parts[0], Host: parts[1], Nonce: parts[2]}, nil
}

// nonce is a random UUID for requests that may make a member.
func nonce(req kmsg.Request) string {
	switch req.(type) {
	case *kmsg.JoinGroupRequest, *kmsg.ConsumerGroupHeartbeatRequest:
	default:
		return ""
	}
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

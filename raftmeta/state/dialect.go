package state

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Dialect is which family of old clients wrote a registration or a claim (zk-paths.md 1.9): they differ in what they store
// and in how they assign.
type Dialect uint8

// Dialects of group members in znodes. Unknown is also a kafka-node member before its setData.
const (
	DialectUnknown    Dialect = iota
	DialectJVM                // kafka.consumer.ZookeeperConsumerConnector, 0.8.1 to 1.1
	DialectKafkaNode          // kafka-node: white_list that means static topics
	DialectPykafka            // the bare topic name; claims <leader>-<partition>
	DialectWvanbergen         // wvanbergen/kafka on kazoo-go: timestamp in seconds, as a number
)

func (d Dialect) String() string {
	return [...]string{"unknown", "jvm", "kafka-node", "pykafka", "wvanbergen"}[d]
}

// registrationDialect reads it off the raw registration.
func registrationDialect(raw []byte) Dialect {
	if len(raw) == 0 {
		return DialectUnknown
	}
	if raw[0] != '{' {
		return DialectPykafka
	}
	var r struct {
		Pattern   string                     `json:"pattern"`
		Topics    map[string]json.RawMessage `json:"subscription"`
		Timestamp json.RawMessage            `json:"timestamp"`
	}
	switch {
	case json.Unmarshal(raw, &r) != nil || r.Topics == nil:
		return DialectUnknown
	case len(r.Timestamp) > 0 && r.Timestamp[0] != '"':
		return DialectWvanbergen
	case r.Pattern == "white_list" && bytes.Contains(raw, []byte(`": `)): // the JVM writes no blanks
		return DialectKafkaNode
	}
	return DialectJVM
}

// claimPartition reads the partition off an owner's literal name: "7", or pykafka's "<leader>-7"; -1 for anything else.
func claimPartition(name string) (partition int32, pykafka bool) {
	if p, ok := ParsePartition(name); ok {
		return p, false
	}
	leader, rest, ok := strings.Cut(name, "-")
	if _, isBroker := ParsePartition(leader); !ok || !isBroker {
		return -1, false
	}
	p, ok := ParsePartition(rest)
	return p, ok
}

// describe sets what a member's or an owner's row says beside the raw text.
func (s *State) describe(p Path, z *Znode, session int64) {
	switch p.Kind {
	case PathMember:
		z.Dialect = registrationDialect(z.Data)
	case PathOwner:
		var pykafka bool
		if z.Partition, pykafka = claimPartition(p.Name); pykafka {
			z.Dialect = DialectPykafka
			return
		}
		z.Dialect = s.sessionDialect(p.Group, session)
	}
}

// sessionDialect is that of the member which a session registered in a group.
func (s *State) sessionDialect(group string, session int64) Dialect {
	if session == 0 {
		return DialectUnknown
	}
	_, members := s.znodes.collect(keyName("/consumers/" + group + "/ids"))
	for _, m := range members {
		if m.Stat.EphemeralOwner == session {
			return m.Dialect
		}
	}
	return DialectUnknown
}

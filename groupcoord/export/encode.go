package export

import (
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// The versions of keys that all of Apache Kafka writes since 0.9.
const (
	offsetKeyVersion = 1
	groupKeyVersion  = 2
)

// Format is the version of the values: Kafka's of that time for both kinds.
type Format int16

// Readers of Kafka 1.1 and older (its formatter, old Burrows) do not know Format3, which Kafka writes since 2.1.
const (
	Format1 Format = 1 // no leader epochs, no instance ids
	Format3 Format = 3
)

// PartitionOf is the partition of a topic with n partitions that has a group's records: Kafka's
// Utils.abs(groupId.hashCode()) % n, where hashCode is Java's over UTF-16 and abs clears the sign of MinValue alone.
func PartitionOf(group string, n int32) int32 {
	h := int32(0)
	for _, r := range group {
		if r < 0x10000 {
			h = 31*h + r
			continue
		}
		hi, lo := utf16.EncodeRune(r)
		h = 31*(31*h+hi) + lo
	}
	switch {
	case n <= 0 || h == -1<<31:
		return 0
	case h < 0:
		h = -h
	}
	return h % n
}

// key names what one record is about: a group's offset, or its metadata with topic "".
type key struct {
	group, topic string
	partition    int32
}

func (k key) encode() []byte {
	if k.topic == "" {
		m := kmsg.GroupMetadataKey{Version: groupKeyVersion, Group: k.group}
		return m.AppendTo(nil)
	}
	m := kmsg.OffsetCommitKey{Version: offsetKeyVersion, Group: k.group, Topic: k.topic, Partition: k.partition}
	return m.AppendTo(nil)
}

// decodeKey reads a key that this package may have written; false: another one's.
func decodeKey(b []byte) (key, bool) {
	if len(b) < 2 || b[0] != 0 {
		return key{}, false
	}
	switch b[1] {
	case offsetKeyVersion:
		var m kmsg.OffsetCommitKey
		if m.ReadFrom(b) != nil || m.Topic == "" {
			return key{}, false
		}
		return key{m.Group, m.Topic, m.Partition}, true
	case groupKeyVersion:
		var m kmsg.GroupMetadataKey
		if m.ReadFrom(b) != nil {
			return key{}, false
		}
		return key{group: m.Group}, true
	}
	return key{}, false
}

// value is what the topic is to say about a key: nil for a tombstone. known is false while there is nothing to say yet: a group in
// the midst of a rebalance is written when it is through, as by Kafka.
func value(v *state.View, k key, f Format) (b []byte, known bool) {
	if k.topic != "" {
		o, ok := v.Offset(k.group, k.topic, k.partition)
		if !ok {
			return nil, true
		}
		return offsetValue(o, f), true
	}
	row, ok := v.Group(k.group)
	switch {
	case !ok || !row.Classic() || row.Consumer: // readers of the old records do not know the groups of KIP-848
		return nil, true
	case row.State != state.GroupStable && row.State != state.GroupEmpty:
		return nil, false
	}
	return groupValue(row, f), true
}

func offsetValue(o *state.Offset, f Format) []byte {
	m := kmsg.OffsetCommitValue{Version: int16(f), Offset: int64(o.Offset), LeaderEpoch: int32(o.LeaderEpoch), Metadata: o.Metadata,
		CommitTimestamp: o.Mtime, ExpireTimestamp: o.Mtime + defaultRetentionMs}
	if o.RetentionMs > 0 {
		m.ExpireTimestamp = o.Mtime + o.RetentionMs
	}
	return m.AppendTo(nil)
}

// defaultRetentionMs is in the values of Format1, which have a time of expiry, in the place of the broker's retention: it is not acted on.
const defaultRetentionMs = 7 * 24 * 3600 * 1000

func groupValue(row *state.Group, f Format) []byte {
	m := kmsg.GroupMetadataValue{Version: int16(f), ProtocolType: row.ProtocolType, Generation: row.Generation, CurrentStateTimestamp: -1}
	if n := len(row.Rebalances); n > 0 {
		m.CurrentStateTimestamp = row.Rebalances[n-1].WallMs
	}
	if len(row.Members) > 0 {
		m.Protocol, m.Leader = &row.Protocol, &row.Leader
	}
	for _, in := range row.Members {
		out := kmsg.GroupMetadataValueMember{MemberID: in.ID, ClientID: in.Client, ClientHost: "/" + in.Host, RebalanceTimeoutMillis: in.RebalanceMs,
			SessionTimeoutMillis: in.SessionMs, Subscription: []byte{}, Assignment: in.Assignment}
		if in.Instance != "" {
			out.InstanceID = &in.Instance
		}
		for _, p := range in.Protocols {
			if p.Name == row.Protocol {
				out.Subscription = p.Metadata
			}
		}
		m.Members = append(m.Members, out)
	}
	return m.AppendTo(nil)
}

// keysOf calls fn for every key that a group has.
func keysOf(v *state.View, row *state.Group, fn func(key)) {
	fn(key{group: row.Name})
	v.Offsets(row.Name, func(topic string, o *state.Offset) bool {
		fn(key{row.Name, topic, o.Partition})
		return true
	})
}

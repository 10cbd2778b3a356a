package cluster

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Fetch is one line of the registry of who fetches what: a client connection at a broker and a partition that it fetches or, when it is
// closed, fetched.
type Fetch struct {
	Conn     uint64 // unique while the broker's process lives; 0: of nobody in particular
	ClientID string
	Host     string // of the client; "" with Closed: of all who are not told apart
	id.TopicPartition
	Age    time.Duration // since the last fetch, when the report was made
	Closed bool          // the connection is no more, and got no record from End on
	End    id.Offset
}

// FetchKey names a line of one broker's registry.
type FetchKey struct {
	Conn uint64
	id.TopicPartition
}

// Report is what a broker tells the Raft leader every lease.ReportEvery.
type Report struct {
	Broker  id.BrokerID
	Epoch   id.BrokerEpoch
	Applied id.Index // the broker's partitions follow the state up to here
	// Voted is the term that this node's part in the metadata log confirmed when the report was made, 0 for none: what a proof
	// round would ask it next.
	Voted    id.Term
	Sessions []id.SessionID // ZooKeeper sessions heard since the last answered report
	// Registry is the change of this broker's fetch registry since report RegistrySeq-1; its absence (RegistrySeq 0) says
	// nothing. Number 1 is the whole registry.
	RegistrySeq uint64
	Fetches     []Fetch
	Gone        []FetchKey
}

// ReportReply is the answer. That there is one says that the leader has proved its leadership since the report came, and
// that the touched sessions live on from then.
type ReportReply struct {
	Term    id.Term
	ClockMs int64 // cluster clock
	Granted bool  // the broker lease: not while the broker does not know of an election that took a partition from it
	// RegistrySeq is the last registry change that the leader has; 0 asks for the whole.
	RegistrySeq uint64
}

const reportVersion = 2

func (r *Report) encode() []byte {
	b := []byte{reportVersion}
	b = binary.BigEndian.AppendUint32(b, uint32(r.Broker))
	b = binary.BigEndian.AppendUint64(b, uint64(r.Epoch))
	b = binary.BigEndian.AppendUint64(b, uint64(r.Applied))
	b = binary.BigEndian.AppendUint64(b, uint64(r.Voted))
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Sessions)))
	for _, s := range r.Sessions {
		b = binary.BigEndian.AppendUint64(b, uint64(s))
	}
	b = binary.BigEndian.AppendUint64(b, r.RegistrySeq)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Fetches)))
	for i := range r.Fetches {
		f := &r.Fetches[i]
		b = appendFetchKey(b, FetchKey{f.Conn, f.TopicPartition})
		b = appendString(b, f.ClientID)
		b = appendString(b, f.Host)
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(f.Age, 0)/time.Millisecond, 1<<32-1)))
		b = append(b, flag(f.Closed))
		b = binary.BigEndian.AppendUint64(b, uint64(f.End))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Gone)))
	for _, k := range r.Gone {
		b = appendFetchKey(b, k)
	}
	return b
}

func appendFetchKey(b []byte, k FetchKey) []byte {
	b = binary.BigEndian.AppendUint64(b, k.Conn)
	b = appendString(b, k.Topic)
	return binary.BigEndian.AppendUint32(b, uint32(k.Partition))
}

const fetchKeyMin = 8 + 2 + 4

// size is that of the line in a report.
func (f *Fetch) size() int {
	return fetchKeyMin + len(f.Topic) + 2 + len(f.ClientID) + 2 + len(f.Host) + 4 + 1 + 8
}

func (r *reader) fetchKey() FetchKey {
	return FetchKey{Conn: r.uint64(), TopicPartition: id.TopicPartition{Topic: r.string(), Partition: int32(r.uint32())}}
}

func decodeReport(b []byte) (*Report, error) {
	d := &reader{b: b}
	if v := d.uint8(); v != reportVersion {
		return nil, fmt.Errorf("report of version %d", v)
	}
	r := &Report{Broker: id.BrokerID(int32(d.uint32())), Epoch: id.BrokerEpoch(d.uint64()), Applied: id.Index(d.uint64()),
		Voted: id.Term(d.uint64())}
	for range d.count(8) {
		r.Sessions = append(r.Sessions, id.SessionID(d.uint64()))
	}
	r.RegistrySeq = d.uint64()
	for range d.count(fetchKeyMin + 2 + 2 + 4 + 1 + 8) {
		k := d.fetchKey()
		r.Fetches = append(r.Fetches, Fetch{Conn: k.Conn, TopicPartition: k.TopicPartition, ClientID: d.string(), Host: d.string(),
			Age: time.Duration(d.uint32()) * time.Millisecond, Closed: d.uint8() == 1, End: id.Offset(d.uint64())})
	}
	for range d.count(fetchKeyMin) {
		r.Gone = append(r.Gone, d.fetchKey())
	}
	if d.bad || len(d.b) > 0 {
		return nil, fmt.Errorf("malformed report of %d bytes", len(b))
	}
	return r, nil
}

func (r *ReportReply) encode() []byte {
	b := binary.BigEndian.AppendUint64([]byte{reportVersion}, uint64(r.Term))
	b = binary.BigEndian.AppendUint64(b, uint64(r.ClockMs))
	return binary.BigEndian.AppendUint64(append(b, flag(r.Granted)), r.RegistrySeq)
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

func decodeReportReply(b []byte) (ReportReply, error) {
	d := &reader{b: b}
	v := d.uint8()
	r := ReportReply{Term: id.Term(d.uint64()), ClockMs: int64(d.uint64()), Granted: d.uint8() == 1, RegistrySeq: d.uint64()}
	if d.bad || v != reportVersion {
		return ReportReply{}, fmt.Errorf("malformed reply to a report (%d bytes, version %d)", len(b), v)
	}
	return r, nil
}

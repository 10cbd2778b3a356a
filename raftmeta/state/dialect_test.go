package state

import (
	"testing"

	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Members and owners keep their raw text, and beside it the dialect and the partition (decisions.md 6).
func TestDialects(t *testing.T) {
	for want, raw := range map[Dialect]string{
		DialectJVM:        `{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1400000000000"}`,
		DialectKafkaNode:  `{"version":1,"subscription":{"t": 1},"pattern":"white_list","timestamp":"1400000000000"}`,
		DialectPykafka:    `topic`,
		DialectWvanbergen: `{"pattern":"static","subscription":{"t":1},"timestamp":1400000000,"version":1}`,
		DialectUnknown:    `{"nonsense`,
	} {
		f := newFold(t)
		ses := f.ok(session())
		for _, path := range []string{"/consumers/g", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/owners/t"} {
			f.ok(create(path, ""))
		}
		f.ok(ephemeral(ses.Value, 1, "/consumers/g/ids/m")) // null first, as kafka-node does
		if z, _ := f.s.View().Znode("/consumers/g/ids/m"); z.Dialect != DialectUnknown {
			t.Errorf("%s: %v before its data", raw, z.Dialect)
		}
		f.ok(set("/consumers/g/ids/m", raw, -1))
		if z, _ := f.s.View().Znode("/consumers/g/ids/m"); z.Dialect != want || string(z.Data) != raw {
			t.Errorf("%s: %v, want %v", raw, z.Dialect, want)
		}
		f.ok(&pb.Command{Origin: &pb.Origin{Session: ses.Value, AttachEpoch: 1}, Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{
			Group: "g", Topic: "t", Name: "7", Data: []byte("m-0"), Ephemeral: true}}})
		if z, _ := f.s.View().Owner("g", "t", "7"); z.Partition != 7 || z.Dialect != want {
			t.Errorf("%s: claim of partition %d by %v, want 7 by %v", raw, z.Partition, z.Dialect, want)
		}
		roundTrip(t, f.s)
	}
	for name, want := range map[string]int32{"0": 0, "12": 12, "3-12": 12, "x": -1, "03": -1, "3-": -1, "-1": -1, "a-1": -1, "1-2-3": -1} {
		if got, _ := claimPartition(name); got != want {
			t.Errorf("claim %q is of partition %d, want %d", name, got, want)
		}
	}
}

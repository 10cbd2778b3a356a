package zkcompat_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// The other tools of 1.1.1 that go to ZooKeeper.
func TestAdminTools(t *testing.T) {
	testtool.Need(t, testtool.Kafka111)
	f := newFold(t, 2)
	n := f.node(t, 0)
	_, addr := serve(t, n.b, nil)
	session(t, addr).create("/brokers/topics/t", `{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}`, 0)
	f.apply(&statepb.Command{Body: &statepb.Command_CommitOffsets{CommitOffsets: &statepb.CommitOffsets{Group: "g", Generation: -1,
		From: statepb.OffsetOrigin_ORIGIN_ZNODE, Items: []*statepb.OffsetItem{{Topic: "t", Offset: 7, LeaderEpoch: -1, RetentionMs: -1}}}}})
	session(t, addr).create("/consumers/g/ids", "", 0)
	plan := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(plan, []byte(`{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tool := func(want, class string, args ...string) {
		t.Helper()
		out, err := testtool.JavaCommand(limit(t), t, testtool.Kafka111, class, args...).CombinedOutput()
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("%s %v: %v, %q is missing in:\n%s", class, args, err, want, out)
		}
	}
	zk := func(args ...string) []string { return append([]string{"--zookeeper", addr}, args...) }
	const config = "kafka.admin.ConfigCommand"
	tool("Completed Updating config", config, zk("--alter", "--entity-type", "topics", "--entity-name", "t", "--add-config", "retention.ms=1000")...)
	tool("retention.ms=1000", config, zk("--describe", "--entity-type", "topics")...)
	tool("Completed Updating config", config, zk("--alter", "--entity-type", "clients", "--entity-name", "c1", "--add-config", "producer_byte_rate=1024")...)
	tool("producer_byte_rate=1024", config, zk("--describe", "--entity-type", "clients")...)
	tool("Completed Updating config", config, zk("--alter", "--entity-type", "users", "--entity-name", "alice", "--add-config", "consumer_byte_rate=5")...)
	tool("NoAuth", config, zk("--alter", "--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-name", "c", "--add-config", "consumer_byte_rate=5")...)
	tool("(?s)alice.*consumer_byte_rate=5", config, zk("--describe", "--entity-type", "users")...)
	tool("Created preferred replica election path", "kafka.admin.PreferredReplicaLeaderElectionCommand", zk()...)
	tool("Successfully started reassignment", "kafka.admin.ReassignPartitionsCommand", zk("--execute", "--reassignment-json-file", plan)...)
	tool("(?s)Reassignment of partition t-0 completed successfully", "kafka.admin.ReassignPartitionsCommand", zk("--verify", "--reassignment-json-file", plan)...)
	acl := []string{"--authorizer-properties", "zookeeper.connect=" + addr}
	tool("(?s)bob has Allow permission for operations: Read", "kafka.admin.AclCommand", append(acl, "--add", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "t")...)
	tool("(?s)bob has Allow permission for operations: Read", "kafka.admin.AclCommand", append(acl, "--list")...)
	tool("(?m)^g$", "kafka.admin.ConsumerGroupCommand", zk("--list")...)
	tool("(?i)deleted all consumer group information", "kafka.admin.ConsumerGroupCommand", zk("--delete", "--group", "g")...)
}

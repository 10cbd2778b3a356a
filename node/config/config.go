// Package config turns the keys of Kafka's server.properties into the typed configuration of one barnabas node.
//
// It is pure: it reads no file, no environment and no clock. cmd/barnabas gathers the values (file, environment, flags, in
// rising precedence) into one map; Parse checks all of them and reports every fault at once. A key that is unknown, or known
// and not honoured, is never an error: it is returned as a Note, and the caller names all of them in one warning.
package config

import (
	"net"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Unlimited is the value of a size or age that is not limited (-1 in the file).
const Unlimited = -1

// Config is the checked configuration of one node. Only Parse makes one; it is not changed afterwards.
type Config struct {
	// Version is the build's, as peers are told; set by cmd after Parse.
	Version string
	// NodeID is the broker id asked for; id.NoBroker lets the cluster choose one.
	NodeID id.BrokerID
	// ClusterID is the cluster's id when it is known before the start (dev); empty otherwise.
	ClusterID string
	// DirectoryID is the data directory's id when it is known before the start (dev); empty lets the node make one.
	DirectoryID id.DirectoryID
	// Voters is the list that an empty directory bootstraps with (dev); empty: wait for `cluster init` or use Join.
	Voters []Voter
	// Join holds cluster addresses (host:port) of nodes to join through.
	Join []string
	// DataDir holds the metadata log and the partitions.
	DataDir string

	// Listeners are the Kafka listeners, Advertised what clients are told, in the same order. At least one.
	Listeners  []Listener
	Advertised []Listener
	// InterBrokerListener names the listener of Advertised that /brokers/ids shows first.
	InterBrokerListener string
	// ClusterListen and ClusterAdvertise are host:port of the port between nodes.
	ClusterListen, ClusterAdvertise string
	// ZooKeeperListen and AdminListen are host:port; empty when the port is switched off (port -1).
	ZooKeeperListen, AdminListen string
	// ZooKeeperChroots are other names of the root for ZooKeeper clients, such as /kafka; sorted, none of them "/".
	ZooKeeperChroots []string

	Topics  Topics
	Log     Log
	Network Network
	Groups  Groups

	// Notes are the keys that were given and are not honoured, sorted by key.
	Notes []Note
}

// Voter is one member of the first Raft configuration.
type Voter struct {
	Directory id.DirectoryID
	Address   string // host:port of its cluster port
}

// Listener is one Kafka endpoint.
type Listener struct {
	Name     string // upper case, as in listeners=
	Protocol string // a Kafka security protocol; PLAINTEXT is the only one served so far
	Host     string // empty binds every interface; never empty in Advertised
	Port     int    // 0 to 65535; 0 lets the system choose
}

// Address is host:port, for net.Listen and net.Dial.
func (l Listener) Address() string { return net.JoinHostPort(l.Host, strconv.Itoa(l.Port)) }

// String is Kafka's form NAME://host:port.
func (l Listener) String() string { return l.Name + "://" + l.Address() }

// Topics holds what a new topic gets.
type Topics struct {
	Partitions  int32 // num.partitions
	Replication int16 // default.replication.factor; 0: min(3, brokers)
	MinISR      int16 // min.insync.replicas; 0: (replication+1)/2
	AutoCreate  bool  // auto.create.topics.enable
	Delete      bool  // delete.topic.enable
}

// Log holds the broker's defaults for partition logs.
type Log struct {
	SegmentBytes       int           // log.segment.bytes
	RollAfter          time.Duration // log.roll.ms or .hours
	IndexIntervalBytes int           // log.index.interval.bytes
	MessageMaxBytes    int           // message.max.bytes: the largest batch accepted
	RetentionTime      time.Duration // log.retention.ms, .minutes or .hours; Unlimited
	RetentionBytes     int64         // log.retention.bytes per partition; Unlimited
	FlushOnAck         bool          // flush.on.ack: acks=all waits for fsync
}

// Network holds socket limits of the Kafka port.
type Network struct {
	SendBuffer, ReceiveBuffer int // socket.*.buffer.bytes; -1: the system's default
	RequestMaxBytes           int // socket.request.max.bytes: the largest frame accepted
	ReplicaFetchMaxBytes      int // replica.fetch.max.bytes per partition; the first batch is always returned
}

// Groups holds limits of group members that join over the Kafka protocol.
type Groups struct {
	InitialRebalanceDelay time.Duration // group.initial.rebalance.delay.ms
	MinSessionTimeout     time.Duration // group.min.session.timeout.ms
	MaxSessionTimeout     time.Duration // group.max.session.timeout.ms
	MaxSize               int           // group.max.size

	ConsumerHeartbeat time.Duration // group.consumer.heartbeat.interval.ms
	ConsumerSession   time.Duration // group.consumer.session.timeout.ms
	ConsumerMaxSize   int           // group.consumer.max.size
	Migration         string        // group.consumer.migration.policy: bidirectional, upgrade, downgrade or disabled

	OffsetsRetention time.Duration // offsets.retention.minutes
	OffsetsCheck     time.Duration // offsets.retention.check.interval.ms

	OffsetsTopic             bool  // barnabas.offsets.topic
	OffsetsTopicFormat       int16 // barnabas.offsets.topic.format: 1 or 3
	OffsetsTopicPartitions   int32
	OffsetsTopicReplication  int16
	OffsetsTopicSegmentBytes int
}

// Note names a key that has no effect, and why.
type Note struct{ Key, Why string }

// Faults is the error of Parse: everything that is wrong, one line each, sorted.
type Faults []string

func (f Faults) Error() string {
	if len(f) == 1 {
		return "configuration: " + f[0]
	}
	return strconv.Itoa(len(f)) + " faults in the configuration:\n  " + strings.Join(f, "\n  ")
}

// Key describes one key that Parse knows.
type Key struct {
	Name    string // as in server.properties
	Env     string // its environment variable
	Default string // for people; empty: none
	Help    string // one line; empty for keys that are known and not honoured
}

// EnvPrefix begins every environment variable that is read as a key.
const EnvPrefix = "BARNABAS_"

// EnvName is the environment variable of a key: upper case, dots and dashes become underscores.
func EnvName(key string) string {
	key = strings.TrimPrefix(key, "barnabas.")
	return EnvPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))
}

// Keys lists every known key, sorted by name.
func Keys() []Key {
	out := make([]Key, 0, len(specs))
	for _, s := range specs {
		out = append(out, Key{Name: s.name, Env: EnvName(s.name), Default: s.def, Help: s.help})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// CheckText finds what a file of properties may not hold before a codec reads it: `${...}` is expanded to an empty string by
// the properties codec, so it is refused here, with the line.
func CheckText(text string) error {
	var faults Faults
	for i, line := range strings.Split(text, "\n") {
		t := strings.TrimSpace(line)
		if strings.HasPrefix(t, "#") || strings.HasPrefix(t, "!") || !strings.Contains(t, "${") {
			continue
		}
		faults = append(faults, "line "+strconv.Itoa(i+1)+": "+noExpansion)
	}
	if faults != nil {
		return faults
	}
	return nil
}

const noExpansion = "${...} is not expanded: write the value itself, or set the key through its BARNABAS_ environment variable"

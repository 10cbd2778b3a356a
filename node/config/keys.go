package config

// kind is how the text of a value is read.
type kind int

const (
	kText     kind = iota
	kBool          // true or false
	kInt           // a whole number within [min, max]
	kMillis        // a duration; a bare number is milliseconds
	kMinutes       // a duration; a bare number is minutes
	kHours         // a duration; a bare number is hours
	kList          // comma-separated, empty items dropped
	kHostPort      // host:port or :port
)

// spec declares one key. A key with unmet set is read and checked, and then named in the warning with that reason.
type spec struct {
	name     string
	kind     kind
	def      string // in the form of the file
	min, max int64  // for numbers and durations (in the key's bare unit)
	help     string
	unmet    string
}

const (
	maxInt32 = 1<<31 - 1
	maxInt64 = 1<<63 - 1
)

// Reasons shared by several keys.
const (
	whyGo        = "threads are managed by the Go runtime"
	whyNoZK      = "barnabas needs no ZooKeeper: its metadata is in its own Raft log"
	whyRaft      = "the Raft quorum of barnabas is set up by `cluster init` and `--join`"
	whyInLog     = "offsets, groups and transactions are in the metadata log, not in a topic"
	whyRetention = "retention and compaction are not built yet: nothing is deleted by age or size"
	whyGroups    = "share and streams groups are not built; classic and consumer groups are"
	whyConsumer  = "not honoured: sessions and heartbeats are the same for all groups, and the assignors are uniform and range"
	whyTxn       = "transactions are not built yet"
	whySecurity  = "TLS and SASL are not built yet: every connection is plain and not authenticated"
	whyAuthz     = "authorization is not built yet: every client may do everything"
	whyLater     = "not built yet"
	whyNoNeed    = "barnabas has no such setting"
)

// specs is every key that is known by its full name.
var specs = []spec{
	// Identity.
	{name: "node.id", kind: kInt, min: -1, max: maxInt32, help: "broker id; -1 or absent lets the cluster choose"},
	{name: "broker.id", kind: kInt, min: -1, max: maxInt32, help: "older name of node.id"},
	{name: "process.roles", kind: kList, help: "must include broker; every node can be a voter"},
	{name: "barnabas.cluster.id", kind: kText, help: "cluster id, 22 characters; made by `cluster init` when absent"},
	{name: "barnabas.directory.id", kind: kText, help: "id of the data directory; made at the first start when absent"},
	{name: "barnabas.voters", kind: kList, help: "first quorum, <directory id>@host:port,... (written by `dev`)"},
	{name: "barnabas.join", kind: kList, help: "cluster addresses (host:port,...) of nodes to join through"},

	// Where.
	{name: "log.dirs", kind: kList, def: "barnabas-data", help: "data directory"},
	{name: "log.dir", kind: kText, help: "data directory, when log.dirs is absent"},
	{name: "listeners", kind: kList, def: "PLAINTEXT://:9092", help: "Kafka listeners, NAME://host:port,..."},
	{name: "advertised.listeners", kind: kList, help: "what clients are told; the listeners when absent"},
	{name: "listener.security.protocol.map", kind: kList, help: "NAME:PROTOCOL,..."},
	{name: "inter.broker.listener.name", kind: kText, help: "listener that /brokers/ids shows first"},
	{name: "security.inter.broker.protocol", kind: kText, help: "must be PLAINTEXT"},
	{name: "host.name", kind: kText, help: "bind address, when listeners is absent"},
	{name: "port", kind: kInt, def: "9092", min: 0, max: 65535, help: "Kafka port, when listeners is absent"},
	{name: "advertised.host.name", kind: kText, help: "advertised host, when advertised.listeners is absent"},
	{name: "advertised.port", kind: kInt, min: 0, max: 65535, help: "advertised port, when advertised.listeners is absent"},
	{name: "cluster.port", kind: kInt, def: "7946", min: 0, max: 65535, help: "port between nodes"},
	{name: "cluster.listener", kind: kHostPort, help: "host:port between nodes, in place of cluster.port"},
	{name: "cluster.advertised.listener", kind: kHostPort, help: "host:port that other nodes dial"},
	{name: "zookeeper.port", kind: kInt, def: "2181", min: -1, max: 65535, help: "ZooKeeper port; -1 switches it off"},
	{name: "zookeeper.listener", kind: kHostPort, help: "host:port for ZooKeeper clients, in place of zookeeper.port"},
	{name: "zookeeper.chroots", kind: kList, help: "paths that old clients use as chroot, /a,/b; besides that of zookeeper.connect"},
	{name: "admin.port", kind: kInt, def: "8080", min: -1, max: 65535, help: "health and metrics; -1 switches it off"},
	{name: "admin.listener", kind: kHostPort, help: "host:port for health and metrics, in place of admin.port"},

	// Topics and logs.
	{name: "num.partitions", kind: kInt, def: "1", min: 1, max: 100000, help: "partitions of a topic made without a count"},
	{name: "default.replication.factor", kind: kInt, def: "min(3, brokers)", min: 1, max: 32767, help: "replicas of a topic made without a count"},
	{name: "min.insync.replicas", kind: kInt, def: "(replicas+1)/2", min: 1, max: 32767, help: "replicas that must have a record before acks=all"},
	{name: "auto.create.topics.enable", kind: kBool, def: "true", help: "make a topic when a client names it"},
	{name: "delete.topic.enable", kind: kBool, def: "true", help: "allow topics to be deleted"},
	{name: "log.segment.bytes", kind: kInt, def: "1073741824", min: 14, max: maxInt32, help: "size at which a segment is closed"},
	{name: "log.roll.ms", kind: kMillis, min: 1, max: maxInt64, help: "age at which a segment is closed"},
	{name: "log.roll.hours", kind: kHours, def: "168", min: 1, max: maxInt32, help: "the same, in hours"},
	{name: "log.index.interval.bytes", kind: kInt, def: "4096", min: 0, max: maxInt32, help: "bytes of log per index entry"},
	{name: "message.max.bytes", kind: kInt, def: "1048588", min: 0, max: maxInt32, help: "largest batch accepted"},
	{name: "flush.on.ack", kind: kBool, def: "true", help: "acks=all waits for fsync"},

	// Sockets.
	{name: "socket.send.buffer.bytes", kind: kInt, def: "-1", min: -1, max: maxInt32, help: "SO_SNDBUF; -1: the system's"},
	{name: "socket.receive.buffer.bytes", kind: kInt, def: "-1", min: -1, max: maxInt32, help: "SO_RCVBUF; -1: the system's"},
	{name: "socket.request.max.bytes", kind: kInt, def: "104857600", min: 1024, max: maxInt32, help: "largest request frame"},
	{name: "replica.fetch.max.bytes", kind: kInt, def: "1048576", min: 0, max: maxInt32, help: "bytes per partition of a replica's fetch"},

	// Groups.
	{name: "group.initial.rebalance.delay.ms", kind: kMillis, def: "1000", min: 0, max: maxInt32, help: "wait for more members when a group begins, anew as long as they come; Kafka: 3000"},
	{name: "group.min.session.timeout.ms", kind: kMillis, def: "6000", min: 1, max: maxInt32, help: "shortest session a group member may ask for"},
	{name: "group.max.session.timeout.ms", kind: kMillis, def: "1800000", min: 1, max: maxInt32, help: "longest session a group member may ask for"},
	{name: "group.max.size", kind: kInt, def: "2147483647", min: 1, max: maxInt32, help: "members that a group may have"},
	{name: "group.consumer.heartbeat.interval.ms", kind: kMillis, def: "1000", min: 1, max: maxInt32, help: "how often members of consumer groups (KIP-848) ask; Kafka: 5000"},
	{name: "group.consumer.session.timeout.ms", kind: kMillis, def: "45000", min: 1, max: maxInt32, help: "how long a member of a consumer group may be silent"},
	{name: "group.consumer.max.size", kind: kInt, def: "2147483647", min: 1, max: maxInt32, help: "members that a consumer group may have"},
	{name: "group.consumer.migration.policy", kind: kText, def: "bidirectional", help: "which way groups with members change their kind: bidirectional, upgrade, downgrade or disabled"},
	{name: "offsets.retention.minutes", kind: kMinutes, def: "10080", min: 1, max: maxInt32, help: "how long a group without members keeps its offsets"},
	{name: "offsets.retention.check.interval.ms", kind: kMillis, def: "600000", min: 1, max: maxInt64, help: "how often offsets are looked at to expire"},
	{name: "barnabas.offsets.topic", kind: kBool, def: "true", help: "make __consumer_offsets, a copy of the committed offsets for those who read it, when a client asks for it"},
	{name: "barnabas.offsets.topic.format", kind: kInt, def: "3", min: 1, max: 3, help: "version of its values: 3 as Kafka writes since 2.1, 1 for readers of Kafka 1.1 and older"},
	{name: "offsets.topic.num.partitions", kind: kInt, def: "50", min: 1, max: 10000, help: "partitions of __consumer_offsets"},
	{name: "offsets.topic.replication.factor", kind: kInt, def: "3", min: 1, max: 32767, help: "replicas of __consumer_offsets; fewer while there are fewer brokers"},
	{name: "offsets.topic.segment.bytes", kind: kInt, def: "104857600", min: 14, max: maxInt32, help: "segment size of __consumer_offsets"},

	// Known, checked, and not honoured yet.
	{name: "log.retention.ms", kind: kMillis, min: -1, max: maxInt64, unmet: whyRetention},
	{name: "log.retention.minutes", kind: kMinutes, min: -1, max: maxInt32, unmet: whyRetention},
	{name: "log.retention.hours", kind: kHours, def: "168", min: -1, max: maxInt32, unmet: whyRetention},
	{name: "log.retention.bytes", kind: kInt, def: "-1", min: -1, max: maxInt64, unmet: whyRetention},
	{name: "log.retention.check.interval.ms", kind: kMillis, min: 1, max: maxInt64, unmet: whyRetention},
	{name: "log.cleanup.policy", kind: kList, unmet: whyRetention},
	{name: "log.cleaner.enable", kind: kBool, unmet: whyRetention},
	{name: "log.roll.jitter.ms", kind: kMillis, min: 0, max: maxInt64, unmet: whyLater},
	{name: "log.roll.jitter.hours", kind: kHours, min: 0, max: maxInt32, unmet: whyLater},
	{name: "transactional.id.expiration.ms", kind: kMillis, min: 1, max: maxInt32, unmet: whyTxn},

	// Known and without meaning here.
	{name: "zookeeper.connect", kind: kText, unmet: whyNoZK},
	{name: "controller.quorum.voters", kind: kText, unmet: whyRaft},
	{name: "controller.quorum.bootstrap.servers", kind: kText, unmet: whyRaft},
	{name: "controller.listener.names", kind: kList, unmet: "nodes talk over cluster.port; a controller listener is not opened"},
	{name: "num.network.threads", kind: kText, unmet: whyGo},
	{name: "num.io.threads", kind: kText, unmet: whyGo},
	{name: "num.recovery.threads.per.data.dir", kind: kText, unmet: whyGo},
	{name: "num.replica.fetchers", kind: kText, unmet: whyGo},
	{name: "background.threads", kind: kText, unmet: whyGo},
	{name: "broker.id.generation.enable", kind: kBool, unmet: "ids are always chosen by the cluster when none is given"},
	{name: "reserved.broker.max.id", kind: kText, unmet: whyNoNeed},
	{name: "inter.broker.protocol.version", kind: kText, unmet: "the feature level is in the metadata log"},
	{name: "log.message.format.version", kind: kText, unmet: "batches are stored in format 2 and converted for old clients"},
}

// families are keys known by their beginning; none of them is honoured.
var families = []struct{ prefix, why string }{
	{"ssl.", whySecurity},
	{"sasl.", whySecurity},
	{"listener.name.", whySecurity},
	{"security.", whySecurity},
	{"principal.builder.", whySecurity},
	{"super.users", whyAuthz},
	{"authorizer.", whyAuthz},
	{"allow.everyone.if.no.acl.found", whyAuthz},
	{"zookeeper.", whyNoZK},
	{"controller.quorum.", whyRaft},
	{"offsets.topic.", whyInLog},
	{"offsets.", whyInLog},
	{"transaction.state.log.", whyInLog},
	{"transaction.", whyTxn},
	{"group.consumer.", whyConsumer},
	{"group.share.", whyGroups},
	{"group.streams.", whyGroups},
	{"group.coordinator.", whyInLog},
	{"group.", whyNoNeed},
	{"log.cleaner.", whyRetention},
	{"log.retention.", whyRetention},
	{"log.flush.", "acks=all is on disk before it is answered; there is no flush interval"},
	{"metric.reporters", "metrics are served in Prometheus form on admin.port"},
	{"metrics.", "metrics are served in Prometheus form on admin.port"},
	{"kafka.metrics.", "metrics are served in Prometheus form on admin.port"},
	{"quota.", "quotas are not built yet"},
	{"remote.log.", "tiered storage is not built yet"},
	{"replica.", whyNoNeed},
	{"metadata.", whyNoNeed},
}

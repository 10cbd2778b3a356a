package config

import (
	"fmt"
	"net"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// parser collects faults and notes while the values are read.
type parser struct {
	given  map[string]string // as given, keys lower-cased and trimmed
	faults Faults
	notes  []Note
	ints   map[string]int64 // kInt, kBool (0 or 1), and durations in nanoseconds (Unlimited stays -1)
	lists  map[string][]string
}

// Parse checks the values and builds the configuration. values maps keys (any case) to their text; an absent key takes its
// default, an empty value counts as absent (as in Kafka). hostname is advertised when no listener names a host. The error is
// a Faults with every fault.
func Parse(values map[string]string, hostname string) (Config, error) {
	p := &parser{given: map[string]string{}, ints: map[string]int64{}, lists: map[string][]string{}}
	for k, v := range values {
		if v = strings.TrimSpace(v); v != "" {
			p.given[strings.ToLower(strings.TrimSpace(k))] = v
		}
	}
	p.readAll()
	c := Config{}
	p.identity(&c)
	p.kafkaListeners(&c, hostname)
	p.otherListeners(&c)
	p.defaults(&c)
	if len(p.faults) > 0 {
		sort.Strings(p.faults)
		return Config{}, p.faults
	}
	sort.Slice(p.notes, func(i, j int) bool { return p.notes[i].Key < p.notes[j].Key })
	c.Notes = p.notes
	return c, nil
}

func (p *parser) fault(key, format string, args ...any) {
	p.faults = append(p.faults, key+": "+fmt.Sprintf(format, args...))
}

func (p *parser) note(key, why string) { p.notes = append(p.notes, Note{Key: key, Why: why}) }

func (p *parser) has(key string) bool { _, ok := p.given[key]; return ok }

// readAll reads every given value by its kind, and notes keys without effect.
func (p *parser) readAll() {
	known := map[string]bool{}
	for _, s := range specs {
		known[s.name] = true
		v, ok := p.given[s.name]
		if !ok {
			if s.def != "" && !strings.ContainsAny(s.def, "()") {
				p.readOne(s, s.def)
			}
			continue
		}
		if strings.Contains(v, "${") {
			p.fault(s.name, "%s", noExpansion)
			continue
		}
		p.readOne(s, v)
		if s.unmet != "" {
			p.note(s.name, s.unmet)
		}
	}
	for k := range p.given {
		if !known[k] {
			p.note(k, familyOf(k))
		}
	}
}

func familyOf(key string) string {
	for _, f := range families {
		if strings.HasPrefix(key, f.prefix) {
			return f.why
		}
	}
	return "unknown key"
}

func (p *parser) readOne(s spec, v string) {
	switch s.kind {
	case kText:
	case kBool:
		switch strings.ToLower(v) {
		case "true":
			p.ints[s.name] = 1
		case "false":
			p.ints[s.name] = 0
		default:
			p.fault(s.name, "%q is neither true nor false", v)
		}
	case kInt:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			p.fault(s.name, "%q is not a whole number", v)
		} else if n < s.min || n > s.max {
			p.fault(s.name, "%d is not within %d to %d", n, s.min, s.max)
		} else {
			p.ints[s.name] = n
		}
	case kMillis:
		p.duration(s, v, time.Millisecond)
	case kMinutes:
		p.duration(s, v, time.Minute)
	case kHours:
		p.duration(s, v, time.Hour)
	case kList:
		for _, item := range strings.Split(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				p.lists[s.name] = append(p.lists[s.name], item)
			}
		}
	case kHostPort:
		if _, _, err := splitHostPort(v); err != nil {
			p.fault(s.name, "%v", err)
		}
	}
}

// duration reads a bare number in the key's own unit, or a number with a unit (ms, s, m, h, d).
func (p *parser) duration(s spec, v string, unit time.Duration) {
	var d time.Duration
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		if n < s.min || n > s.max {
			p.fault(s.name, "%d is not within %d to %d", n, s.min, s.max)
			return
		}
		if n == Unlimited {
			p.ints[s.name] = Unlimited
			return
		}
		if n > int64(1<<63-1)/int64(unit) { // longer than 292 years: as good as for ever
			d = 1<<63 - 1
		} else {
			d = time.Duration(n) * unit
		}
	} else if d, err = parseDuration(v); err != nil {
		p.fault(s.name, "%q is not a duration: write a number of %s, or one with a unit such as 500ms or 2h", v, unitName(unit))
		return
	} else if d < time.Duration(max(s.min, 0))*unit {
		p.fault(s.name, "%s is shorter than %s", v, time.Duration(max(s.min, 0))*unit)
		return
	}
	p.ints[s.name] = int64(d)
}

func unitName(unit time.Duration) string {
	switch unit {
	case time.Minute:
		return "minutes"
	case time.Hour:
		return "hours"
	}
	return "milliseconds"
}

// parseDuration is time.ParseDuration with days.
func parseDuration(v string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(v, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || n < 0 || n > 100000 {
			return 0, fmt.Errorf("%q is not a number of days", v)
		}
		return time.Duration(n * float64(24*time.Hour)), nil
	}
	d, err := time.ParseDuration(v)
	if err == nil && d < 0 {
		err = fmt.Errorf("%q is negative", v)
	}
	return d, err
}

var (
	clusterIDForm   = regexp.MustCompile(`^[A-Za-z0-9_-]{22}$`)
	directoryIDForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	listenerName    = regexp.MustCompile(`^[A-Z0-9_.-]+$`)
)

func (p *parser) identity(c *Config) {
	c.NodeID = id.NoBroker
	if n, ok := p.ints["broker.id"]; ok {
		c.NodeID = id.BrokerID(n)
	}
	if n, ok := p.ints["node.id"]; ok {
		if old, both := p.ints["broker.id"]; both && old != n {
			p.fault("node.id", "%d and broker.id %d differ: give one of them", n, old)
		}
		c.NodeID = id.BrokerID(n)
	}
	if roles, ok := p.lists["process.roles"]; ok {
		p.roles(roles)
	}
	c.ClusterID = p.given["barnabas.cluster.id"]
	if c.ClusterID != "" && !clusterIDForm.MatchString(c.ClusterID) {
		p.fault("barnabas.cluster.id", "%q is not 22 characters of A-Z a-z 0-9 _ -", c.ClusterID)
	}
	c.DirectoryID = id.DirectoryID(p.given["barnabas.directory.id"])
	if c.DirectoryID != "" && !directoryIDForm.MatchString(string(c.DirectoryID)) {
		p.fault("barnabas.directory.id", "%q is not 1 to 64 characters of A-Z a-z 0-9 _ -", c.DirectoryID)
	}
	p.quorum(c)
	dirs := p.lists["log.dirs"]
	if !p.has("log.dirs") && p.has("log.dir") {
		dirs = []string{p.given["log.dir"]}
	}
	if len(dirs) == 0 {
		p.fault("log.dirs", "names no directory")
		return
	}
	c.DataDir = dirs[0]
	if len(dirs) > 1 {
		p.note("log.dirs", "only the first directory is used: "+dirs[0])
	}
}

func (p *parser) roles(roles []string) {
	broker := false
	for _, r := range roles {
		switch r {
		case "broker":
			broker = true
		case "controller":
		default:
			p.fault("process.roles", "%q is neither broker nor controller", r)
		}
	}
	if !broker {
		p.fault("process.roles", "must include broker: barnabas has no nodes that are only controllers")
	}
}

func (p *parser) quorum(c *Config) {
	seen := map[id.DirectoryID]bool{}
	for _, item := range p.lists["barnabas.voters"] {
		dir, addr, ok := strings.Cut(item, "@")
		if !ok || !directoryIDForm.MatchString(dir) {
			p.fault("barnabas.voters", "%q is not <directory id>@host:port", item)
			continue
		}
		if !p.reachable("barnabas.voters", addr) {
			continue
		}
		if seen[id.DirectoryID(dir)] {
			p.fault("barnabas.voters", "%s is named twice", dir)
		}
		seen[id.DirectoryID(dir)] = true
		c.Voters = append(c.Voters, Voter{Directory: id.DirectoryID(dir), Address: addr})
	}
	for _, addr := range p.lists["barnabas.join"] {
		if p.reachable("barnabas.join", addr) {
			c.Join = append(c.Join, addr)
		}
	}
	if len(c.Voters) == 0 {
		return
	}
	if len(c.Voters)%2 == 0 {
		p.fault("barnabas.voters", "%d voters: give an odd number", len(c.Voters))
	}
	if len(c.Join) > 0 {
		p.fault("barnabas.join", "cannot be used with barnabas.voters: a node either bootstraps or joins")
	}
	if c.ClusterID == "" {
		p.fault("barnabas.voters", "needs barnabas.cluster.id")
	}
	if !seen[c.DirectoryID] {
		p.fault("barnabas.voters", "does not name this node's barnabas.directory.id %q", c.DirectoryID)
	}
}

// reachable checks an address that others must dial.
func (p *parser) reachable(key, addr string) bool {
	host, port, err := splitHostPort(addr)
	if err == nil && (host == "" || port == 0) {
		err = fmt.Errorf("%q needs a host and a port", addr)
	}
	if err != nil {
		p.fault(key, "%v", err)
	}
	return err == nil
}

func splitHostPort(v string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(v)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port", v)
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q has no port within 0 to 65535", v)
	}
	return host, port, nil
}

// migration reads group.consumer.migration.policy, which Kafka takes in any case of letters.
func (p *parser) migration() string {
	const key, both = "group.consumer.migration.policy", "bidirectional"
	v, ok := p.given[key]
	if !ok {
		return both
	}
	switch v = strings.ToLower(strings.TrimSpace(v)); v {
	case both, "upgrade", "downgrade", "disabled":
		return v
	}
	p.fault(key, "%q is none of bidirectional, upgrade, downgrade and disabled", v)
	return both
}

// defaults fills what needs no further thought.
func (p *parser) defaults(c *Config) {
	n := func(key string) int64 { return p.ints[key] }
	c.Topics = Topics{
		Partitions: int32(n("num.partitions")), Replication: int16(n("default.replication.factor")),
		MinISR: int16(n("min.insync.replicas")), AutoCreate: n("auto.create.topics.enable") == 1,
		Delete: n("delete.topic.enable") == 1,
	}
	if rf := c.Topics.Replication; rf > 0 && c.Topics.MinISR > rf {
		p.fault("min.insync.replicas", "%d is above default.replication.factor %d: no write could be acked", c.Topics.MinISR, rf)
	}
	c.Log = Log{
		SegmentBytes: int(n("log.segment.bytes")), IndexIntervalBytes: int(n("log.index.interval.bytes")),
		MessageMaxBytes: int(n("message.max.bytes")), RetentionBytes: n("log.retention.bytes"),
		FlushOnAck:    n("flush.on.ack") == 1,
		RollAfter:     p.firstDuration("log.roll.ms", "log.roll.hours"),
		RetentionTime: p.firstDuration("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
	}
	c.Network = Network{
		SendBuffer: int(n("socket.send.buffer.bytes")), ReceiveBuffer: int(n("socket.receive.buffer.bytes")),
		RequestMaxBytes: int(n("socket.request.max.bytes")), ReplicaFetchMaxBytes: int(n("replica.fetch.max.bytes")),
	}
	d := func(key string) time.Duration { return time.Duration(n(key)) }
	c.Groups = Groups{
		InitialRebalanceDelay: d("group.initial.rebalance.delay.ms"), MinSessionTimeout: d("group.min.session.timeout.ms"),
		MaxSessionTimeout: d("group.max.session.timeout.ms"), MaxSize: int(p.ints["group.max.size"]),
		ConsumerHeartbeat: d("group.consumer.heartbeat.interval.ms"), ConsumerSession: d("group.consumer.session.timeout.ms"),
		ConsumerMaxSize: int(n("group.consumer.max.size")), Migration: p.migration(),
		OffsetsRetention: d("offsets.retention.minutes"), OffsetsCheck: d("offsets.retention.check.interval.ms"),
		OffsetsTopic: n("barnabas.offsets.topic") == 1, OffsetsTopicFormat: int16(n("barnabas.offsets.topic.format")), OffsetsTopicPartitions: int32(n("offsets.topic.num.partitions")),
		OffsetsTopicReplication: int16(n("offsets.topic.replication.factor")), OffsetsTopicSegmentBytes: int(n("offsets.topic.segment.bytes")),
	}
	if c.Groups.MinSessionTimeout > c.Groups.MaxSessionTimeout {
		p.fault("group.min.session.timeout.ms", "%s is above group.max.session.timeout.ms %s", c.Groups.MinSessionTimeout, c.Groups.MaxSessionTimeout)
	}
	if c.Groups.ConsumerHeartbeat >= c.Groups.ConsumerSession {
		p.fault("group.consumer.heartbeat.interval.ms", "%s is not below group.consumer.session.timeout.ms %s", c.Groups.ConsumerHeartbeat, c.Groups.ConsumerSession)
	}
	if c.Groups.OffsetsTopicFormat == 2 {
		p.fault("barnabas.offsets.topic.format", "there is no format 2: 1 or 3")
	}
	if c.Log.MessageMaxBytes > c.Network.RequestMaxBytes {
		p.fault("message.max.bytes", "%d is above socket.request.max.bytes %d: such a batch could not arrive",
			c.Log.MessageMaxBytes, c.Network.RequestMaxBytes)
	}
}

// firstDuration is the given key of the finest unit, else the default of the coarsest (as in Kafka).
func (p *parser) firstDuration(keys ...string) time.Duration {
	for _, k := range keys {
		if d, ok := p.ints[k]; ok && p.has(k) {
			return time.Duration(d)
		}
	}
	return time.Duration(p.ints[keys[len(keys)-1]])
}

package broker

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/internal/testtool/reference"
	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// step is one request that both brokers get. differs says why the answers may differ; such a step is only sent.
type step struct {
	name    string
	req     kmsg.Request
	differs string
}

// TestAnswersLikeKafka111 sends the same requests to a real Apache Kafka 1.1.1 and to ours: every version that both have, and what
// clients get wrong. Answers must be equal but for addresses, times and the words of messages.
func TestAnswersLikeKafka111(t *testing.T) {
	zk := reference.ZooKeeper(t)
	real := reference.Kafka(t, testtool.Kafka111, zk.Addr, "broker.id=1", "auto.create.topics.enable=false", "num.partitions=2",
		"message.max.bytes=1048588")
	f := startReal(t, func(c *Config) { c.NoAutoCreate, c.NumPartitions = true, 2 })
	conn, err := net.Dial("tcp", real.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	kafka, ours := &client{t: t, c: conn, in: bufio.NewReader(conn)}, f.dial(t)
	for _, s := range script(t) {
		what := fmt.Sprintf("%s (%s v%d)", s.name, kmsg.NameForKey(s.req.Key()), s.req.GetVersion())
		kafka.send(s.req)
		want := normal(kafka.receive(s.req))
		ours.send(s.req)
		got := normal(ours.receive(s.req))
		if s.differs == "" && !slices.Equal(want, got) {
			for i := range max(len(want), len(got)) {
				if i >= len(want) || i >= len(got) || want[i] != got[i] {
					t.Errorf("%s\n  Kafka 1.1.1: %s\n  ours:        %s", what, want[min(i, len(want)):min(i+3, len(want))], got[min(i, len(got)):min(i+3, len(got))])
					break
				}
			}
		}
		if s.differs != "" && slices.Equal(want, got) {
			t.Errorf("%s: equal, although %q", what, s.differs)
		}
		if strings.HasPrefix(s.name, "create") {
			awaitTopics(kafka)
		}
	}
}

// awaitTopics waits until every topic of the reference has a leader: its CreateTopics returns before that.
func awaitTopics(c *client) {
	c.t.Helper()
	waitFor(c.t, func() bool {
		req := kmsg.NewPtrMetadataRequest()
		for _, topic := range ask[*kmsg.MetadataResponse](c, req).Topics {
			for _, p := range topic.Partitions {
				if p.ErrorCode != 0 {
					return false
				}
			}
		}
		return true
	})
}

// normal is an answer as one line per field, without what may differ; lists of partitions in order.
func normal(resp kmsg.Response) []string {
	var out []string
	flatten(reflect.ValueOf(resp), strings.TrimPrefix(reflect.TypeOf(resp).String(), "*kmsg."), &out)
	return out
}

func flatten(v reflect.Value, path string, out *[]string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			*out = append(*out, path+" = null")
		} else {
			flatten(v.Elem(), path, out)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			*out = append(*out, fmt.Sprintf("%s = %x", path, v.Bytes()))
			return
		}
		if v.Type().Elem().Kind() == reflect.Struct { // 1.1.1 lists as its hash maps do
			_, partitions := v.Type().Elem().FieldByName("Partition")
			names := strings.HasSuffix(path, ".Configs")
			sort.SliceStable(v.Interface(), func(i, j int) bool {
				switch a, b := v.Index(i), v.Index(j); {
				case partitions:
					return a.FieldByName("Partition").Int() < b.FieldByName("Partition").Int()
				case names:
					return a.FieldByName("Name").String() < b.FieldByName("Name").String()
				}
				return false
			})
		}
		for i := range v.Len() {
			flatten(v.Index(i), fmt.Sprintf("%s[%d]", path, i), out)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			switch name := v.Type().Field(i).Name; name {
			case "UnknownTags", "Port", "ThrottleMillis", "ProducerID", "LastStableOffset":
				// 1.1.1 gives the last stable offset only to read_committed consumers, later ones to all.
			case "ClusterID", "ErrorMessage":
				*out = append(*out, fmt.Sprintf("%s.%s is null: %v", path, name, v.Field(i).IsNil()))
			default:
				flatten(v.Field(i), path+"."+name, out)
			}
		}
	default:
		*out = append(*out, fmt.Sprintf("%s = %v", path, v.Interface()))
	}
}

func createRequest(version int16, topics ...kmsg.CreateTopicsRequestTopic) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis, req.Topics = version, 20_000, topics
	return req
}

func topicOf(name string, partitions int32, rf int16, configs ...string) kmsg.CreateTopicsRequestTopic {
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, partitions, rf
	for i := 0; i < len(configs); i += 2 {
		rt.Configs = append(rt.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: configs[i], Value: &configs[i+1]})
	}
	return rt
}

func assigned(name string, partitions int32, rf int16, replicas map[int32][]int32) kmsg.CreateTopicsRequestTopic {
	rt := topicOf(name, partitions, rf)
	for p := int32(0); p < 10; p++ {
		if r, ok := replicas[p]; ok {
			rt.ReplicaAssignment = append(rt.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: p, Replicas: r})
		}
	}
	return rt
}

func script(t *testing.T) []step {
	var out []step
	add := func(name string, req kmsg.Request, differs ...string) {
		out = append(out, step{name, req, strings.Join(differs, "")})
	}
	scriptTopics(add)
	scriptRecords(t, add)
	scriptOffsets(add)
	return out
}

func scriptTopics(add func(string, kmsg.Request, ...string)) {
	for v := int16(0); v <= 2; v++ {
		add("create", createRequest(v, topicOf(fmt.Sprintf("made%d", v), 2, 1, "segment.bytes", "1000000")))
		add("create again", createRequest(v, topicOf("made0", 2, 1)))
		add("create illegal name", createRequest(v, topicOf("a/b", 1, 1)))
		add("create without name", createRequest(v, topicOf("", 1, 1)))
		add("create too many replicas", createRequest(v, topicOf("bad1", 1, 2)))
		add("create no replicas", createRequest(v, topicOf("bad2", 1, 0)))
		add("create no partitions", createRequest(v, topicOf("bad3", 0, 1)))
		add("create wrong value", createRequest(v, topicOf("bad4", 1, 1, "retention.ms", "soon")), "1.1.1 answers -1, later ones 40")
		add("create unknown config", createRequest(v, topicOf("bad5", 1, 1, "no.such", "1")))
		add("create assigned", createRequest(v, assigned(fmt.Sprintf("assigned%d", v), -1, -1, map[int32][]int32{0: {1}, 1: {1}})))
		add("create assigned and counted", createRequest(v, assigned("bad6", 1, 1, map[int32][]int32{0: {1}})))
		add("create assigned with a hole", createRequest(v, assigned("bad7", -1, -1, map[int32][]int32{0: {1}, 2: {1}})), "1.1.1 makes a topic with a hole on the first time")
		add("create assigned twice", createRequest(v, assigned("bad8", -1, -1, map[int32][]int32{0: {1, 1}})))
		// A replica that does not exist, or none, breaks the controller of 1.1.1: not asked.
		if v > 0 {
			only := createRequest(v, topicOf("bad11", 1, 1))
			only.ValidateOnly = true
			add("create validate only", only)
		}
	}
	for v := int16(0); v <= 5; v++ {
		for _, name := range []string{"made0", "missing", "a/b", ""} {
			req := kmsg.NewPtrMetadataRequest()
			req.Version, req.Topics = v, []kmsg.MetadataRequestTopic{{Topic: &name}}
			differs := ""
			if state.ValidTopicName(name) != "" {
				differs = "1.1.1 checks names only when it may create the topic, later ones always"
			}
			add("metadata of "+name, req, differs)
		}
		if v > 0 {
			req := kmsg.NewPtrMetadataRequest()
			req.Version, req.Topics = v, []kmsg.MetadataRequestTopic{}
			add("metadata of nothing", req)
		}
	}
	for v := int16(0); v <= 1; v++ {
		for name, differs := range map[string]string{"made0": "", "missing": "1.1.1 shows defaults, later ones answer 3"} {
			req := kmsg.NewPtrDescribeConfigsRequest()
			req.Version, req.IncludeSynonyms = v, true
			req.Resources = []kmsg.DescribeConfigsRequestResource{{
				ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: name,
				ConfigNames: []string{"no.such", "cleanup.policy", "retention.bytes", "segment.bytes"},
			}}
			add("describe configs of "+name, req, differs)
		}
	}
	grow := func(name string, count int32) *kmsg.CreatePartitionsRequest {
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.TimeoutMillis = 20_000
		req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: name, Count: count}}
		return req
	}
	add("grow", grow("made1", 3))
	add("grow a missing topic", grow("missing", 3))
	add("grow to fewer", grow("made1", 1))
	add("grow to as many", grow("made1", 3))
	add("grow to nothing", grow("made1", 0))
	both := grow("made1", 5)
	both.Topics[0].Assignment = []kmsg.CreatePartitionsRequestTopicAssignment{{Replicas: []int32{1}}}
	add("grow with too few assignments", both)
	twice := grow("made1", 5)
	twice.Topics[0].Assignment = []kmsg.CreatePartitionsRequestTopicAssignment{{Replicas: []int32{1, 1}}, {Replicas: []int32{1, 1}}}
	add("grow with more replicas", twice)
	for v := int16(0); v <= 1; v++ {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version, req.TimeoutMillis, req.TopicNames = v, 20_000, []string{"missing"}
		add("delete a missing topic", req)
	}
	add("producer id", kmsg.NewPtrInitProducerIDRequest())
}

func scriptRecords(t *testing.T, add func(string, kmsg.Request, ...string)) {
	rs := []record.Record{
		{Offset: 0, Timestamp: 1500000000000, Key: []byte("k"), Value: []byte("one")},
		{Offset: 1, Timestamp: 1500000000500, Value: []byte("two")},
		{Offset: 2, Timestamp: 1500000000200, Key: []byte{}, Value: nil},
	}
	rs[1].SetHeaders([]record.Header{{Key: "h", Value: []byte("v")}})
	good, err := record.NewCodecs(0).Build(nil, record.PlainHeader(), rs)
	if err != nil {
		t.Fatal(err)
	}
	down := func(magic int8) []byte {
		d, err := record.NewCodecs(0).DownConvert(nil, good, record.DownRules{Magic: magic, MaxBytes: 1 << 20, AtLeastOne: true})
		if err != nil {
			t.Fatal(err)
		}
		return d.Set
	}
	wrongCRC := bytes.Clone(good)
	wrongCRC[len(wrongCRC)-1] ^= 1
	large := batch(t, strings.Repeat("x", 2<<20))
	for v := int16(0); v <= 5; v++ {
		payload := good
		if v < 3 {
			payload = down(int8(v / 2))
		}
		add("produce", produceOne(v, -1, "made0", 0, payload))
		add("produce acks 1", produceOne(v, 1, "made0", 1, payload))
		add("produce to a missing topic", produceOne(v, -1, "missing", 0, payload))
		add("produce to a missing partition", produceOne(v, 1, "made0", 9, payload))
		add("produce with acks -2", produceOne(v, -2, "made0", 0, payload))
		if v < 3 { // some clients send a newer format in an older request (pykafka 2.8.0 does)
			add("produce magic 1", produceOne(v, -1, "made0", 1, down(1)))
			add("produce magic 2", produceOne(v, -1, "made0", 1, good))
		}
		if v >= 3 {
			add("produce wrong CRC", produceOne(v, -1, "made0", 0, wrongCRC))
			add("produce too much", produceOne(v, -1, "made0", 0, large))
		}
	}
	for v := int16(0); v <= 6; v++ {
		for _, at := range []int64{0, 1, 4, 18, 99, -1} {
			add(fmt.Sprintf("fetch from %d", at), fetchOne(v, "made0", at, 0, 1))
		}
		add("fetch a missing topic", fetchOne(v, "missing", 0, 100, 1))
	}
	for v := int16(0); v <= 2; v++ {
		for _, ts := range []int64{-1, -2, 1500000000100, time.Now().Add(time.Hour).UnixMilli(), 0} {
			req := kmsg.NewPtrListOffsetsRequest()
			req.Version, req.ReplicaID = v, -1
			for _, p := range []int32{0, 1, 9} {
				rp := kmsg.NewListOffsetsRequestTopicPartition()
				rp.Partition, rp.Timestamp, rp.MaxNumOffsets = p, ts, 10
				if len(req.Topics) == 0 {
					req.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "made0"}}
				}
				req.Topics[0].Partitions = append(req.Topics[0].Partitions, rp)
			}
			add(fmt.Sprintf("offsets at %d", ts), req)
		}
	}
	for _, epoch := range []int32{0, 1, -1} {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: "made0"}}
		for _, p := range []int32{0, 9} {
			rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rp.Partition, rp.LeaderEpoch = p, epoch
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, rp)
		}
		add(fmt.Sprintf("end of epoch %d", epoch), req)
	}
}

func scriptOffsets(add func(string, kmsg.Request, ...string)) {
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = "g", -1
	for _, topic := range []string{"made0", "missing"} {
		rt := kmsg.NewOffsetCommitRequestTopic()
		rt.Topic = topic
		for _, p := range []int32{0, 9} {
			rp := kmsg.NewOffsetCommitRequestTopicPartition()
			meta := "m"
			rp.Partition, rp.Offset, rp.Metadata = p, 5, &meta
			rt.Partitions = append(rt.Partitions, rp)
		}
		commit.Topics = append(commit.Topics, rt)
	}
	add("commit to ZooKeeper", commit, "1.1.1 takes offsets of partitions that do not exist")
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Group = "g"
	fetch.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "made0", Partitions: []int32{0, 1}}, {Topic: "missing", Partitions: []int32{0}}}
	add("offsets in ZooKeeper", fetch)
}

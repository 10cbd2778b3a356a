package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFranzGoProducesAndConsumes(t *testing.T) {
	f := start(t, func(c *Config) { c.NumPartitions = 3 })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	producer, err := kgo.NewClient(kgo.SeedBrokers(f.addr), kgo.AllowAutoTopicCreation(), kgo.DefaultProduceTopic("made-by-metadata"))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	const n = 1000
	for i := range n {
		producer.Produce(ctx, &kgo.Record{Key: fmt.Append(nil, i), Value: fmt.Append(nil, "value ", i)}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := producer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	pid, epoch, err := producer.ProducerID(ctx)
	if err != nil || pid < 0 || epoch != 0 {
		t.Errorf("producer id %d epoch %d: %v", pid, epoch, err)
	}
	start := kgo.NewOffset().AtStart()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(f.addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		"made-by-metadata": {0: start, 1: start, 2: start},
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	seen := map[string]bool{}
	for len(seen) < n {
		got := consumer.PollFetches(ctx)
		if err := got.Err(); err != nil {
			t.Fatal(err)
		}
		got.EachRecord(func(r *kgo.Record) {
			if seen[string(r.Key)] {
				t.Errorf("key %s twice", r.Key)
			}
			seen[string(r.Key)] = true
		})
	}
}

func TestAdminClient(t *testing.T) {
	f := start(t, func(c *Config) {
		c.NoAutoCreate, c.Static = true, map[string]string{"log.retention.ms": "7200000", "node.id": "1"}
	})
	f.meta.register(t, 2, "127.0.0.1:2")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	size := "1234567"
	made, err := adm.CreateTopic(ctx, -1, -1, map[string]*string{"segment.bytes": &size}, "t")
	if err != nil || made.NumPartitions != 1 || made.ReplicationFactor != 2 {
		t.Fatal(made, err)
	}
	if _, err := adm.CreateTopic(ctx, 1, 5, nil, "u"); !errors.Is(err, kerr.InvalidReplicationFactor) {
		t.Errorf("5 replicas on 2 brokers: %v", err)
	}
	if rs, err := adm.UpdatePartitions(ctx, 4, "t"); err != nil || rs.Error() != nil {
		t.Error(rs, err)
	}
	if rs, err := adm.UpdatePartitions(ctx, 2, "t"); err != nil || !errors.Is(rs.Error(), kerr.InvalidPartitions) {
		t.Errorf("shrinking: %v %v", rs, err)
	}
	topics, err := adm.ListTopics(ctx, "t")
	if err != nil || len(topics["t"].Partitions) != 4 || len(topics["t"].Partitions[3].Replicas) != 2 || topics["t"].ID == [16]byte{} {
		t.Error(topics, err)
	}
	configs, err := adm.DescribeTopicConfigs(ctx, "t")
	if err != nil || len(configs) != 1 || configs[0].Err != nil {
		t.Fatal(configs, err)
	}
	want := map[string]struct {
		value  string
		source kmsg.ConfigSource
	}{
		"segment.bytes":       {size, kmsg.ConfigSourceDynamicTopicConfig},
		"retention.ms":        {"7200000", kmsg.ConfigSourceStaticBrokerConfig},
		"retention.bytes":     {"-1", kmsg.ConfigSourceDefaultConfig},
		"min.insync.replicas": {"1", kmsg.ConfigSourceDefaultConfig},
	}
	for _, c := range configs[0].Configs {
		if w, ok := want[c.Key]; ok && (c.Value == nil || *c.Value != w.value || c.Source != w.source) {
			t.Errorf("%s: %+v", c.Key, c)
		}
	}
	bc, err := adm.DescribeBrokerConfigs(ctx, 1)
	if err != nil || len(bc) != 1 || bc[0].Err != nil || len(bc[0].Configs) != 2 {
		t.Errorf("broker configs: %+v %v", bc, err)
	}
	alter := func(want error, configs ...kadm.AlterConfig) {
		t.Helper()
		rs, err := adm.AlterTopicConfigs(ctx, configs, "t")
		if err != nil || len(rs) != 1 || !errors.Is(rs[0].Err, want) {
			t.Fatalf("%+v: %+v %v", configs, rs, err)
		}
	}
	value := func(v string) *string { return &v }
	alter(nil, kadm.AlterConfig{Op: kadm.SetConfig, Name: "max.message.bytes", Value: value("5000")}, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: "segment.bytes"},
		kadm.AlterConfig{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: value("compact")})
	alter(nil, kadm.AlterConfig{Op: kadm.SubtractConfig, Name: "cleanup.policy", Value: value("delete")})
	alter(kerr.InvalidConfig, kadm.AlterConfig{Op: kadm.SetConfig, Name: "max.message.bytes", Value: value("many")}, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: "cleanup.policy"})
	alter(kerr.InvalidConfig, kadm.AlterConfig{Op: kadm.SetConfig, Name: "no.such", Value: value("1")})
	alter(kerr.InvalidConfig, kadm.AlterConfig{Op: kadm.AppendConfig, Name: "max.message.bytes", Value: value("1")})
	row, _ := f.meta.View().Config("topics", "t")
	if fmt.Sprint(row.Entries) != "[{cleanup.policy compact} {max.message.bytes 5000}]" {
		t.Errorf("configuration: %v", row.Entries)
	}
	if rs, err := adm.AlterTopicConfigsState(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: value("77")}}, "t"); err != nil || rs[0].Err != nil {
		t.Error(rs, err)
	}
	if row, _ = f.meta.View().Config("topics", "t"); fmt.Sprint(row.Entries) != "[{retention.ms 77}]" {
		t.Errorf("configuration: %v", row.Entries)
	}
	if rs, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: value("77")}}, "missing"); err != nil || !errors.Is(rs[0].Err, kerr.UnknownTopicOrPartition) {
		t.Error(rs, err)
	}
	if rs, err := adm.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Name: "num.partitions", Value: value("77")}}, 1); err != nil || !errors.Is(rs[0].Err, kerr.InvalidRequest) {
		t.Error(rs, err)
	}
	meta, err := adm.BrokerMetadata(ctx)
	if err != nil || meta.Controller != 1 || len(meta.Brokers) != 2 || meta.Cluster != "abcdefghijklmnopqrstuv" {
		t.Error(meta, err)
	}
	if rs, err := adm.DeleteTopics(ctx, "t"); err != nil || rs.Error() != nil {
		t.Error(rs, err)
	}
}

func TestOffsetsOfEveryVersion(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 2, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	meta := "note"
	for _, v := range versions(offsetCommitAPI.max) {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Version, req.Group, req.Generation, req.RetentionTimeMillis = v, "g", -1, 60_000
		rt := kmsg.NewOffsetCommitRequestTopic()
		rt.Topic = "t"
		for _, p := range []int32{0, 9} {
			rp := kmsg.NewOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = p, 100+int64(v), 4, &meta
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
		got := ask[*kmsg.OffsetCommitResponse](c, req)
		if got.Topics[0].Partitions[0].ErrorCode != 0 || got.Topics[0].Partitions[1].ErrorCode != 3 {
			t.Fatalf("commit v%d: %+v", v, got)
		}
		o, ok := f.meta.View().Offset("g", "t", 0)
		if !ok || int64(o.Offset) != 100+int64(v) || o.Metadata != meta || (o.Origin == state.FromZnode) != (v == 0) ||
			(o.RetentionMs == 60_000) != (v >= 2 && v <= 4) || (o.LeaderEpoch == 4) != (v >= 6) || !strings.HasPrefix(o.By, "cli@127.0.0.1") {
			t.Errorf("commit v%d: %+v", v, o)
		}
		for _, fv := range versions(offsetFetchAPI.max) {
			checkOffsetFetch(c, fv, 100+int64(v))
		}
	}
}

// A broker that cannot prove that it leads answers offsets to nobody, but by the znode's face, which every broker serves.
func TestOffsetFetchNeedsAProof(t *testing.T) {
	f := start(t, nil)
	f.deps.ProveLeading = func(context.Context) error { return errors.New("deposed") }
	c := f.dial(t)
	for _, v := range versions(offsetFetchAPI.max) {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Version, req.Group = v, "g"
		req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0}}}
		req.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", Partitions: []int32{0}}}}}
		got, want := ask[*kmsg.OffsetFetchResponse](c, req), kerr.NotCoordinator.Code
		code := got.ErrorCode
		switch {
		case v == 0:
			code, want = got.Topics[0].Partitions[0].ErrorCode, kerr.UnknownTopicOrPartition.Code
		case v == 1:
			code = got.Topics[0].Partitions[0].ErrorCode
		case v >= 8:
			code = got.Groups[0].ErrorCode
		}
		if code != want {
			t.Errorf("v%d: error %d, want %d", v, code, want)
		}
	}
}

func checkOffsetFetch(c *client, v int16, want int64) {
	c.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = v, "g"
	req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0, 1}}}
	req.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", Partitions: []int32{0, 1}}}}}
	missing := int16(0)
	if v == 0 {
		missing = 3
	}
	check := func(offset, none int64, code, noneCode int16) {
		if offset != want || code != 0 || none != -1 || noneCode != missing {
			c.t.Errorf("fetch v%d: offset %d error %d, missing %d error %d", v, offset, code, none, noneCode)
		}
	}
	got := ask[*kmsg.OffsetFetchResponse](c, req)
	if v < 8 {
		ps := got.Topics[0].Partitions
		check(ps[0].Offset, ps[1].Offset, ps[0].ErrorCode, ps[1].ErrorCode)
	} else {
		ps := got.Groups[0].Topics[0].Partitions
		check(ps[0].Offset, ps[1].Offset, ps[0].ErrorCode, ps[1].ErrorCode)
	}
	if v < 2 {
		return
	}
	req.Topics, req.Groups[0].Topics = nil, nil
	got = ask[*kmsg.OffsetFetchResponse](c, req)
	n := len(got.Topics)
	if v >= 8 {
		n = len(got.Groups[0].Topics)
	}
	if n != 1 || got.ErrorCode != 0 {
		c.t.Errorf("fetch of all v%d: %+v", v, got)
	}
}

func TestOnlyTheCoordinatorServesGroups(t *testing.T) {
	f := start(t, nil)
	f.meta.register(t, 2, "127.0.0.1:2")
	f.meta.must(t, command(2))
	c := f.dial(t)
	for _, v := range versions(offsetFetchAPI.max) {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Version, req.Group, req.Topics = v, "g", []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0}}}
		req.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g"}}
		got := ask[*kmsg.OffsetFetchResponse](c, req)
		switch {
		case v == 0 && got.Topics[0].Partitions[0].ErrorCode != 3,
			v == 1 && got.Topics[0].Partitions[0].ErrorCode != 16,
			v > 1 && v < 8 && got.ErrorCode != 16,
			v == 8 && got.Groups[0].ErrorCode != 16:
			t.Errorf("v%d: %+v", v, got)
		}
	}
	for _, v := range versions(findCoordinatorAPI.max) {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.Version, req.CoordinatorKey, req.CoordinatorKeys = v, "g", []string{"g", "h"}
		got := ask[*kmsg.FindCoordinatorResponse](c, req)
		if v < 4 && (got.NodeID != 2 || got.Port != 2) || v == 4 && (len(got.Coordinators) != 2 || got.Coordinators[1].NodeID != 2) {
			t.Errorf("v%d: %+v", v, got)
		}
	}
}

func fetchOne(version int16, topic string, offset int64, wait, minBytes int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = version, wait, minBytes, 1<<20
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.FetchOffset, rp.PartitionMaxBytes = offset, 1<<20
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func TestFetchOfEveryVersion(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	if got := produced1(c, produceOne(8, -1, "t", 0, batch(t, "one", "two"))); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	for _, v := range versions(fetchAPI.max) {
		got := ask[*kmsg.FetchResponse](c, fetchOne(v, "t", 0, 100, 1))
		p := got.Topics[0].Partitions[0]
		_, magic, err := record.Peek(p.RecordBatches)
		if want := min(v/2, 2); err != nil || magic != int8(want) || p.HighWatermark != 2 || got.SessionID != 0 {
			t.Errorf("v%d: magic %d, %+v, %v", v, magic, got, err)
		}
		if p := ask[*kmsg.FetchResponse](c, fetchOne(v, "t", 2, 0, 1)).Topics[0].Partitions[0]; p.ErrorCode != 0 || p.RecordBatches == nil || len(p.RecordBatches) != 0 {
			t.Errorf("v%d at the end: %+v", v, p)
		}
		if p := ask[*kmsg.FetchResponse](c, fetchOne(v, "t", 9, 100, 1)).Topics[0].Partitions[0]; p.ErrorCode != 1 || p.HighWatermark != -1 {
			t.Errorf("v%d past the end: %+v", v, p)
		}
	}
	empty := fetchOne(7, "t", 0, 60_000, 1)
	empty.Topics, empty.SessionEpoch = nil, -1
	if got := ask[*kmsg.FetchResponse](c, empty); got.ErrorCode != 0 || len(got.Topics) != 0 {
		t.Errorf("a request for nothing: %+v", got)
	}
	req := fetchOne(7, "t", 0, 100, 1)
	req.SessionID, req.SessionEpoch = 5, 3
	if got := ask[*kmsg.FetchResponse](c, req); got.ErrorCode != 70 {
		t.Errorf("a session that nobody gave: %+v", got)
	}
}

func TestListOffsetsAndEpochs(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	if got := produced1(c, produceOne(8, -1, "t", 0, batch(t, "one", "two"))); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	for _, v := range versions(listOffsetsAPI.max) {
		req := kmsg.NewPtrListOffsetsRequest()
		req.Version, req.ReplicaID = v, -1
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = "t"
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Timestamp, rp.MaxNumOffsets = -1, 10
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		got := ask[*kmsg.ListOffsetsResponse](c, req).Topics[0].Partitions[0]
		if got.ErrorCode != 0 || v == 0 && (len(got.OldStyleOffsets) != 2 || got.OldStyleOffsets[0] != 2) || v > 0 && got.Offset != 2 {
			t.Errorf("v%d: %+v", v, got)
		}
	}
	for _, v := range versions(offsetForLeaderEpochAPI.max) {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.Version, req.ReplicaID = v, -1
		rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
		rt.Topic = "t"
		rt.Partitions = append(rt.Partitions, kmsg.NewOffsetForLeaderEpochRequestTopicPartition())
		req.Topics = append(req.Topics, rt)
		got := ask[*kmsg.OffsetForLeaderEpochResponse](c, req).Topics[0].Partitions[0]
		if got.ErrorCode != 0 || got.EndOffset != 2 {
			t.Errorf("v%d: %+v", v, got)
		}
	}
}

// TestParkedFetch: a long poll holds nobody else up, is answered by the append, keeps the order of its connection, and ends with
// its client.
func TestParkedFetch(t *testing.T) {
	f := start(t, nil)
	parked, other := f.dial(t), f.dial(t)
	if got := createTopic(other, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	fetch := fetchOne(7, "t", 0, 60_000, 1)
	first := parked.send(fetch)
	second := parked.send(kmsg.NewPtrApiVersionsRequest())
	waitFor(t, func() bool { f.parts.mu.Lock(); defer f.parts.mu.Unlock(); return f.parts.last.MaxWait > 0 })
	// A produce behind a parked fetch of its own connection is appended at once, which answers the fetch.
	parked.send(produceOne(7, -1, "t", 0, batch(t, "x")))
	corr, _, err := parked.frame()
	if err != nil || corr != first {
		t.Fatalf("correlation %d, want %d: %v", corr, first, err)
	}
	if corr, _, err := parked.frame(); err != nil || corr != second {
		t.Fatalf("correlation %d, want %d: %v", corr, second, err)
	}
	if _, _, err := parked.frame(); err != nil {
		t.Fatal(err)
	}
	fetch = fetchOne(7, "t", 1, 60_000, 1)
	for range 5 {
		parked.send(fetch)
	}
	waitFor(t, func() bool { f.parts.mu.Lock(); defer f.parts.mu.Unlock(); return f.parts.last.Items[0].Offset == 1 })
	_ = parked.c.Close()
	waitFor(t, func() bool { f.parts.mu.Lock(); defer f.parts.mu.Unlock(); return len(f.parts.gone) == 1 })
	f.alive(t)
}

func TestStopFreesEverything(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	f.parts.hold = make(chan struct{})
	for range 50 {
		d := f.dial(t)
		d.send(fetchOne(7, "t", 0, 60_000, 1<<20))
		e := f.dial(t)
		e.send(produceOne(7, -1, "t", 0, batch(t, "x")))
	}
	waitFor(t, func() bool { return f.Connections() == 101 })
	begin := time.Now()
	f.Stop()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("Stop took %v", took)
	}
	if f.Connections() != 0 {
		t.Errorf("%d connections after Stop", f.Connections())
	}
}

// TestPipelinedProduceKeepsOrder sends more requests than may be in flight before reading any answer.
func TestPipelinedProduceKeepsOrder(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxInFlight = 4 })
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	const n = 500
	req := produceOne(7, -1, "t", 0, batch(t, "x"))
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if _, err := c.c.Write(frameOf(req, int32(1000+i))); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := range n {
		corr, body, err := c.frame()
		if err != nil || corr != int32(1000+i) {
			t.Fatalf("answer %d: correlation %d, %v", i, corr, err)
		}
		resp := kmsg.ProduceResponse{Version: 7}
		if err := resp.ReadFrom(body); err != nil || resp.Topics[0].Partitions[0].BaseOffset != int64(i) {
			t.Fatalf("answer %d: %+v, %v", i, resp, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestProduceWaitsForAPartitionOnItsWay: a client comes straight from the broker that made the topic.
func TestProduceWaitsForAPartitionOnItsWay(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	c.send(produceOne(7, -1, "t", 0, batch(t, "x")))
	waitFor(t, func() bool { return f.parts.looks.Load() > 0 })
	f.meta.must(t, createT())
	resp := c.receive(produceOne(7, -1, "t", 0, nil)).(*kmsg.ProduceResponse)
	if got := resp.Topics[0].Partitions[0]; got.ErrorCode != 0 {
		t.Errorf("%+v", got)
	}
	if got := produced1(c, produceOne(7, -1, "never", 0, batch(t, "x"))); got.ErrorCode != 3 {
		t.Errorf("%+v", got)
	}
}

func TestUnknownOutcomeIsTimedOutNotFailed(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	f.meta.mu.Lock()
	f.meta.err = io.ErrUnexpectedEOF
	f.meta.mu.Unlock()
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 7 {
		t.Errorf("create: %+v", got)
	}
	name := "auto"
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 1, []kmsg.MetadataRequestTopic{{Topic: &name}}
	if got := ask[*kmsg.MetadataResponse](c, req).Topics[0]; got.ErrorCode != 5 {
		t.Errorf("auto-create: %+v", got)
	}
	init := kmsg.NewPtrInitProducerIDRequest()
	if got := ask[*kmsg.InitProducerIDResponse](c, init); got.ErrorCode != 14 || got.ProducerID != -1 {
		t.Errorf("producer id: %+v", got)
	}
	f.meta.mu.Lock()
	f.meta.err = nil
	f.meta.mu.Unlock()
	seen := map[int64]bool{}
	for range producerBlock + 5 {
		got := ask[*kmsg.InitProducerIDResponse](c, init)
		if got.ErrorCode != 0 || seen[got.ProducerID] {
			t.Fatalf("producer id: %+v", got)
		}
		seen[got.ProducerID] = true
	}
	txn := "transfer"
	init.TransactionalID = &txn
	if got := ask[*kmsg.InitProducerIDResponse](c, init); got.ErrorCode != 35 {
		t.Errorf("a transaction: %+v", got)
	}
}

// TestMetadataOfLostBrokers: what a client of version 0 sees must be in its list of brokers.
func TestMetadataOfLostBrokers(t *testing.T) {
	f := start(t, nil)
	f.meta.register(t, 2, "127.0.0.1:2")
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 2, 2, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	f.meta.must(t, fence(f.meta.View(), 2))
	for _, v := range versions(metadataAPI.max) {
		name := "t"
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.Topics = v, []kmsg.MetadataRequestTopic{{Topic: &name}}
		got := ask[*kmsg.MetadataResponse](c, req)
		if len(got.Brokers) != 1 || got.Brokers[0].NodeID != 1 {
			t.Errorf("v%d: brokers %+v", v, got.Brokers)
		}
		for _, p := range got.Topics[0].Partitions {
			want, replicas, offline := int16(0), 2, 1
			if v == 0 {
				want, replicas = 9, 1
			}
			if v < 5 {
				offline = 0
			}
			if p.Leader != 1 || p.ErrorCode != want || len(p.Replicas) != replicas || len(p.OfflineReplicas) != offline || len(p.ISR) != 1 {
				t.Errorf("v%d: %+v", v, p)
			}
		}
	}
}

package broker

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// kafkaNames gives the names that Kafka 1.1.1's schemas have for a kmsg field, where they are not the same but for case and
// underscores. Fields of messages that those schemas lack are not set by them.
var kafkaNames = map[string][]string{
	"Topic": {"topic", "topics"}, "Replicas": {"assignment"}, "CoordinatorKey": {"group_id"}, "ThrottleMillis": {"throttle_time_ms"}, "MaxWaitMillis": {"max_wait_time"},
	"TransactionID": {"transactional_id"}, "TransactionalID": {"transactional_id"}, "TimeoutMillis": {"timeout"},
	"TransactionTimeoutMillis": {"transaction_timeout_ms"}, "RetentionTimeMillis": {"retention_time"},
	"Records": {"record_set"}, "RecordBatches": {"record_set"}, "SessionEpoch": {"epoch"}, "PartitionMaxBytes": {"max_bytes"},
	"Group": {"group_id"}, "Generation": {"generation_id"}, "OldStyleOffsets": {"offsets"}, "TopicNames": {"topics"},
	"NumPartitions": {"num_partitions"}, "Name": {"config_name", "protocol_name"}, "Value": {"config_value"}, "Source": {"config_source"},
	"LastStableOffset": {"last_stable_offset"}, "NodeID": {"node_id"}, "CoordinatorType": {"coordinator_type"},
	"ConfigNames": {"config_names", "config_name"}, "Partitions": {"partitions", "partition"}, "ErrorCode": {"error_code"},
	"SessionTimeoutMillis": {"session_timeout"}, "RebalanceTimeoutMillis": {"rebalance_timeout"}, "Protocol": {"group_protocol"},
	"Metadata": {"protocol_metadata"}, "ProtocolMetadata": {"member_metadata"}, "Groups": {"group_ids", "groups"},
	"FirstOffset": {"first_offset"}, "LeaderEpoch": {"leader_epoch", "epoch"},
}

// goldenLine is one line of testdata/golden/kafka-1.1.1.txt.
type goldenLine struct {
	key, version int16
	kind         string
	full         bool
	bytes        []byte
}

func goldenLines(t testing.TB) []goldenLine {
	t.Helper()
	data, err := os.ReadFile("testdata/golden/kafka-1.1.1.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out []goldenLine
	for line := range strings.Lines(string(data)) {
		var l goldenLine
		var variant, text string
		if _, err := fmt.Sscan(strings.TrimSpace(line)+" .", &l.key, &l.kind, &l.version, &variant, &text); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if text != "." {
			if l.bytes, err = hex.DecodeString(text); err != nil {
				t.Fatal(err)
			}
		}
		l.full = variant == "full"
		out = append(out, l)
	}
	return out
}

// message is what requests and responses have in common.
type message interface {
	ReadFrom([]byte) error
	AppendTo([]byte) []byte
}

func (l *goldenLine) message() message {
	req := kmsg.RequestForKey(l.key)
	req.SetVersion(l.version)
	if l.kind == "request" {
		return req
	}
	return req.ResponseKind()
}

// TestBytesEqualKafkas: what Apache Kafka 1.1.1's own schemas write is read, every value into the field that it is meant for, and
// written again to the same bytes.
func TestBytesEqualKafkas(t *testing.T) {
	f := start(t, nil)
	covered := map[int16]int{}
	for _, l := range goldenLines(t) {
		a, ok := f.apis[l.key]
		if !ok {
			continue
		}
		if l.version > a.max {
			t.Errorf("%s version %d, which Kafka 1.1.1 serves, is not served", a.name, l.version)
			continue
		}
		covered[l.key]++
		what := fmt.Sprintf("%s %s v%d", a.name, l.kind, l.version)
		m := l.message()
		if err := m.ReadFrom(l.bytes); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got := m.AppendTo(nil); !bytes.Equal(got, l.bytes) {
			t.Errorf("%s: written as\n% x, Kafka writes\n% x", what, got, l.bytes)
		}
		if l.full {
			checkFields(t, what, reflect.ValueOf(m).Elem(), reflect.ValueOf(fresh(&l)).Elem())
		}
		if l.kind == "request" && a.check != nil {
			if err := a.check(l.version, l.bytes); err != nil {
				t.Errorf("%s: its check says %v", what, err)
			}
		}
	}
	if len(covered) != len(f.sorted)-5 { // 1.1.1 has no IncrementalAlterConfigs, OffsetDelete, DescribeCluster and ConsumerGroup*
		t.Errorf("golden bytes cover %d of %d APIs", len(covered), len(f.sorted))
	}
}

// fresh is a message with nothing but defaults.
func fresh(l *goldenLine) message {
	m := l.message()
	reflect.ValueOf(m).MethodByName("Default").Call(nil)
	return m
}

// checkFields compares every value with what its field's name says it is. A value that is still its default was not in the bytes.
func checkFields(t *testing.T, what string, v, def reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Name == "Version" || field.Name == "UnknownTags" || field.Name == "unused" {
			continue
		}
		val := v.Field(i)
		if def.IsValid() && reflect.DeepEqual(val.Interface(), def.Field(i).Interface()) || !def.IsValid() && val.IsZero() {
			continue
		}
		checkValue(t, what+" "+field.Name, field.Name, val)
	}
}

func checkValue(t *testing.T, what, field string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		def := reflect.Value{}
		if m := reflect.New(v.Type()).MethodByName("Default"); m.IsValid() {
			p := reflect.New(v.Type())
			p.MethodByName("Default").Call(nil)
			def = p.Elem()
		}
		checkFields(t, what, v, def)
		return
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			checkText(t, what, field, string(v.Bytes()))
			return
		}
		if v.Len() != 2 {
			t.Errorf("%s has %d elements", what, v.Len())
		}
		for i := range v.Len() {
			checkValue(t, what, field, v.Index(i))
		}
		return
	case reflect.Pointer:
		checkValue(t, what, field, v.Elem())
		return
	case reflect.String:
		checkText(t, what, field, v.String())
		return
	case reflect.Bool:
		if !v.Bool() {
			t.Errorf("%s is false", what)
		}
		return
	}
	n := v.Int()
	for _, name := range namesOf(field) {
		h := int64(crc32.ChecksumIEEE([]byte(name)))
		switch v.Kind() {
		case reflect.Int8:
			h &= 0x7f
		case reflect.Int16:
			h &= 0x7fff
		case reflect.Int32:
			h &= 0x7fffffff
		default:
			h <<= 20
		}
		if h == n {
			return
		}
	}
	t.Errorf("%s = %d is the value of another field", what, n)
}

func checkText(t *testing.T, what, field, got string) {
	t.Helper()
	for _, name := range namesOf(field) {
		if name == got {
			return
		}
	}
	t.Errorf("%s = %q is the value of another field", what, got)
}

// namesOf lists what Kafka may call a kmsg field.
func namesOf(field string) []string {
	var snake strings.Builder
	runes := []rune(field)
	for i, r := range runes {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && (runes[i-1] >= 'a' && runes[i-1] <= 'z' || i+1 < len(runes) && runes[i+1] >= 'a' && runes[i+1] <= 'z') {
			snake.WriteByte('_')
		}
		snake.WriteString(strings.ToLower(string(r)))
	}
	return append(kafkaNames[field], snake.String())
}

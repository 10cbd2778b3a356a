package ztree

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Documents as Kafka writes them (zk-paths.md 1). Every number fits a signed 32-bit integer: the JSON parser of 0.8 to 0.10
// calls toInt on each, so anything longer is a string.

func decimal(n int64) []byte { return strconv.AppendInt(nil, n, 10) }

func appendString(b []byte, s string) []byte {
	if plain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	q, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...) // a string always marshals
	}
	return append(b, q...)
}

// plain strings need no escapes; nearly all are.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func appendIDs(b []byte, ids []id.BrokerID) []byte {
	b = append(b, '[')
	for i, n := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return append(b, ']')
}

// brokerJSON is version 2, which every reader from 0.8 to 1.1 takes, 0.9.0.0 included (KAFKA-3100). host and port are
// the first PLAINTEXT endpoint's, or null and -1: what old consumers read.
func brokerJSON(b *state.Broker) []byte {
	out := append(make([]byte, 0, 192), `{"version":2,"host":`...)
	host, port := "", int32(-1)
	for _, p := range b.Endpoints {
		if port < 0 && p.Listener == "PLAINTEXT" {
			host, port = p.Host, p.Port
		}
	}
	if port < 0 {
		out = append(out, "null"...)
	} else {
		out = appendString(out, host)
	}
	out = append(out, `,"port":`...)
	out = strconv.AppendInt(out, int64(port), 10)
	out = append(out, `,"jmx_port":-1,"timestamp":"`...)
	out = strconv.AppendInt(out, b.Stat.Ctime, 10)
	out = append(out, `","endpoints":[`...)
	first := true
	for _, p := range b.Endpoints {
		if !securityProtocol(p.Listener) {
			continue // version 2 has no map from listener names: readers would throw
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		out = appendEndpoint(out, p)
	}
	return append(out, `]}`...)
}

func appendEndpoint(b []byte, p state.Endpoint) []byte {
	host := p.Host
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	if !plain(host) {
		return appendString(b, p.Listener+"://"+host+":"+strconv.Itoa(int(p.Port)))
	}
	b = append(append(append(append(b, '"'), p.Listener...), "://"...), host...)
	return append(strconv.AppendInt(append(b, ':'), int64(p.Port), 10), '"')
}

func securityProtocol(name string) bool {
	switch name {
	case "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL":
		return true
	}
	return false
}

// topicJSON is of the first partitions of a topic.
func (v View) topicJSON(t *state.Topic, partitions int32) []byte {
	b := append(make([]byte, 0, 40+12*int(t.Partitions)), `{"version":1,"partitions":{`...)
	v.s.Partitions(t.Name, func(n int32, p *state.Partition) bool {
		if n >= partitions {
			return false
		}
		if n > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, '"'), int64(n), 10)
		b = appendIDs(append(b, `":`...), p.Replicas)
		return true
	})
	return append(b, `}}`...)
}

func stateJSON(p *state.Partition) []byte {
	b := append(make([]byte, 0, 96), `{"controller_epoch":`...)
	b = strconv.AppendInt(b, int64(p.ControllerEpoch), 10)
	b = strconv.AppendInt(append(b, `,"leader":`...), int64(p.Leader), 10)
	b = strconv.AppendInt(append(b, `,"version":1,"leader_epoch":`...), int64(p.LeaderEpoch), 10)
	b = appendIDs(append(b, `,"isr":`...), p.ISR)
	return append(b, '}')
}

func controllerJSON(b id.BrokerID, ms int64) []byte {
	out := strconv.AppendInt([]byte(`{"version":1,"brokerid":`), int64(b), 10)
	out = strconv.AppendInt(append(out, `,"timestamp":"`...), ms, 10)
	return append(out, `"}`...)
}

func clusterJSON(cluster string) []byte {
	return append(appendString([]byte(`{"version":"1","id":`), cluster), '}')
}

// producerBlockJSON shows the block that ends where the next one begins; nobody but Kafka's own brokers reads it.
func producerBlockJSON(b id.BrokerID, next int64) []byte {
	out := strconv.AppendInt([]byte(`{"version":1,"broker":`), int64(b), 10)
	out = strconv.AppendInt(append(out, `,"block_start":"`...), max(next-1000, 0), 10)
	out = strconv.AppendInt(append(out, `","block_end":"`...), next-1, 10)
	return append(out, `"}`...)
}

func configJSON(c *state.Config) []byte {
	b := []byte(`{"version":1,"config":{`)
	for i, kv := range c.Entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(appendString(b, kv.Name), ':'), kv.Value)
	}
	return append(b, `}}`...)
}

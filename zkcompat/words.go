package zkcompat

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// word answers a four-letter word, which stands where a frame's length would.
func (s *Server) word(first uint32) (string, bool) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], first)
	switch string(b[:]) {
	case "ruok":
		return "imok", true
	case "isro":
		return "rw", true
	case "srvr", "stat":
		st := s.Stats()
		return fmt.Sprintf("Zookeeper version: 3.9.5-barnabas\nReceived: %d\nSent: %d\nConnections: %d\n"+
			"Outstanding: 0\nZxid: 0x%x\nMode: standalone\n", st.Received, st.Sent, st.Connections, uint64(st.Zxid)), true
	case "mntr":
		return s.monitor(), true
	}
	return "", false
}

func (s *Server) monitor() string {
	st := s.Stats()
	var b strings.Builder
	for _, kv := range []struct {
		k string
		v any
	}{
		{"zk_version", "3.9.5-barnabas"}, {"zk_server_state", "standalone"}, {"zk_packets_received", st.Received},
		{"zk_packets_sent", st.Sent}, {"zk_num_alive_connections", st.Connections}, {"zk_watch_count", st.Watches},
		{"zk_global_sessions", st.Sessions},
	} {
		fmt.Fprintf(&b, "%s\t%v\n", kv.k, kv.v)
	}
	return b.String()
}

// Package reference starts what barnabas stands in for: a real Apache ZooKeeper 3.9.5 and real Apache Kafka brokers of 0.8.2.2,
// 1.1.1 and 4.4, from the jars that `make tools` fetched, on free loopback ports. Tests ask them what is right. For tests only; each
// server is killed when its test ends.
package reference

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// startLimit is how long a JVM may take on a busy machine until it serves.
const startLimit = 90 * time.Second

// Server is one real server.
type Server struct {
	*testtool.Process
	Addr string // host:port for clients
	Dir  string // its data
}

// ZooKeeper starts a stand-alone ZooKeeper 3.9.5 and returns when it serves. Tick time 2 s, as barnabas has; four-letter words
// are all allowed. Extra lines are added to its zoo.cfg.
func ZooKeeper(t testing.TB, extra ...string) *Server {
	t.Helper()
	dir, port := testtool.Folder(t), testtool.FreePort(t)
	config := append([]string{
		"dataDir=" + filepath.Join(dir, "data"),
		"clientPortAddress=127.0.0.1",
		fmt.Sprintf("clientPort=%d", port),
		"tickTime=2000", "initLimit=10", "syncLimit=5", "maxClientCnxns=0",
		"admin.enableServer=false", "4lw.commands.whitelist=*",
	}, extra...)
	file := write(t, dir, "zoo.cfg", config)
	cmd := testtool.JavaCommand(context.Background(), t, testtool.ZooKeeper395,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
	s := &Server{Process: testtool.Start(t, "zookeeper", cmd), Addr: fmt.Sprintf("127.0.0.1:%d", port), Dir: dir}
	s.await(t, func(conn net.Conn) error {
		if _, err := conn.Write([]byte("ruok")); err != nil {
			return err
		}
		answer, err := io.ReadAll(conn)
		if err == nil && string(answer) != "imok" {
			err = fmt.Errorf("answer to ruok: %q", answer)
		}
		return err
	})
	return s
}

// Kafka starts one broker of testtool.Kafka082 or testtool.Kafka111 with id 0 on the ZooKeeper given (host:port, with or
// without chroot) and returns when it answers for itself. Extra lines are added to its server.properties.
func Kafka(t testing.TB, version testtool.Tool, zookeeper string, extra ...string) *Server {
	t.Helper()
	dir, port := testtool.Folder(t), testtool.FreePort(t)
	config := []string{
		"broker.id=0", "log.dirs=" + filepath.Join(dir, "data"), "zookeeper.connect=" + zookeeper,
		"zookeeper.connection.timeout.ms=60000", "offsets.topic.num.partitions=1",
		"offsets.topic.replication.factor=1", "delete.topic.enable=true", "controlled.shutdown.enable=false",
		"log.retention.hours=2147483647", // records of the past that a test writes stay, however slow the machine
	}
	if version == testtool.Kafka082 {
		config = append(config, "host.name=127.0.0.1", fmt.Sprintf("port=%d", port))
	} else {
		config = append(config, fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d", port), "group.initial.rebalance.delay.ms=0")
	}
	file := write(t, dir, "server.properties", append(config, extra...))
	cmd := testtool.JavaCommand(context.Background(), t, version, "kafka.Kafka", file)
	s := &Server{Process: testtool.Start(t, string(version), cmd), Addr: fmt.Sprintf("127.0.0.1:%d", port), Dir: dir}
	s.await(t, func(conn net.Conn) error {
		brokers, err := metadata(conn)
		// 0.8.2's controller tells its brokers of each other only with the first topic.
		if err == nil && brokers == 0 && version != testtool.Kafka082 {
			err = fmt.Errorf("metadata names no broker yet")
		}
		return err
	})
	return s
}

// Kafka44 starts one Apache Kafka 4.4 in KRaft mode, broker and controller in one process, and returns when it serves.
func Kafka44(t testing.TB, extra ...string) *Server {
	t.Helper()
	return Kafka44Nodes(t, 1, extra...)[0]
}

// Kafka44Nodes starts a cluster of so many such nodes, with ids from 1, and returns when each serves. Its offsets topic is replicated
// to all of them.
func Kafka44Nodes(t testing.TB, nodes int, extra ...string) []*Server {
	t.Helper()
	ports := testtool.FreePorts(t, 2*nodes)
	var voters []string
	for i := range nodes {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", i+1, ports+nodes+i))
	}
	all := make([]*Server, nodes)
	for i := range all {
		dir := testtool.Folder(t)
		file := write(t, dir, "server.properties", append([]string{
			"process.roles=broker,controller", fmt.Sprintf("node.id=%d", i+1), "log.dirs=" + filepath.Join(dir, "data"),
			fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", ports+i, ports+nodes+i),
			fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d", ports+i),
			"controller.quorum.voters=" + strings.Join(voters, ","), "controller.listener.names=CONTROLLER",
			"offsets.topic.num.partitions=1", fmt.Sprintf("offsets.topic.replication.factor=%d", nodes),
			"group.initial.rebalance.delay.ms=0", "log.retention.hours=2147483647",
		}, extra...))
		format := testtool.Start(t, "format", testtool.JavaCommand(context.Background(), t, testtool.Kafka44,
			"kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", file))
		if err := format.WaitFor(startLimit); err != nil {
			t.Fatalf("format: %v", err)
		}
		cmd := testtool.JavaCommand(context.Background(), t, testtool.Kafka44, "kafka.Kafka", file)
		all[i] = &Server{Process: testtool.Start(t, fmt.Sprint("kafka-4.4-", i+1), cmd), Addr: fmt.Sprintf("127.0.0.1:%d", ports+i), Dir: dir}
	}
	for _, s := range all {
		s.await(t, func(net.Conn) error { return nil })
	}
	return all
}

func write(t testing.TB, dir, name string, lines []string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// await returns when ask succeeds on a fresh connection.
func (s *Server) await(t testing.TB, ask func(net.Conn) error) {
	t.Helper()
	testtool.Eventually(t, startLimit, func() error {
		if !s.Alive() {
			t.Fatalf("%s ended while it started", s.Name)
		}
		conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		return ask(conn)
	})
}

// metadata asks Metadata v0, which every Kafka answers, and returns how many brokers it names.
func metadata(conn net.Conn) (brokers int, err error) {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{}
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, request, 1)); err != nil {
		return 0, err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return 0, err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, body); err != nil {
		return 0, err
	}
	response := kmsg.NewPtrMetadataResponse()
	err = response.ReadFrom(body[min(4, len(body)):])
	return len(response.Brokers), err
}

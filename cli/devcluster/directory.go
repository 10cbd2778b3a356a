package devcluster

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	loopback     = "127.0.0.1"
	manifestName = "dev.json"
	devLock      = "dev.lock"
	clusterName  = "cluster.json"
	clusterLock  = "cluster.lock"
	configName   = "barnabas.properties"
	logName      = "barnabas.log"
)

// manifest is dev.json: what the directory was made with. It marks a directory as ours.
type manifest struct {
	Format    int            `json:"format"` // 1
	Dir       string         `json:"dir"`    // where it was; a moved directory gets its paths rewritten
	ClusterID string         `json:"clusterId"`
	Nodes     []nodeManifest `json:"nodes"`
}

type nodeManifest struct {
	ID          int    `json:"id"`
	DirectoryID string `json:"directoryId"`
	Kafka       int    `json:"kafka"`
	ZooKeeper   int    `json:"zookeeper"`
	Admin       int    `json:"admin"`
	Peer        int    `json:"cluster"`
}

type namedPort struct {
	name string
	port int
}

func (n nodeManifest) ports() []namedPort {
	return []namedPort{{"Kafka", n.Kafka}, {"ZooKeeper", n.ZooKeeper}, {"admin", n.Admin}, {"cluster", n.Peer}}
}

// directory is an opened and locked cluster directory.
type directory struct {
	path     string
	manifest manifest
	unlock   func()
}

func (d *directory) close()              { d.unlock() }
func (d *directory) clusterFile() string { return filepath.Join(d.path, clusterName) }
func (d *directory) node(id int, name string) string {
	return filepath.Join(d.path, strconv.Itoa(id), name)
}

// open makes the directory, or takes it up as it was.
func open(c Config) (*directory, error) {
	d := &directory{path: c.Dir}
	_, err := os.Stat(filepath.Join(c.Dir, manifestName))
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return nil, err
	}
	if fresh {
		if err := emptyOrNew(c.Dir); err != nil {
			return nil, err
		}
	}
	if d.unlock, err = lock(filepath.Join(c.Dir, devLock), false); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%s is in use by another `barnabas dev`: stop that one, or choose another --dir", c.Dir)
		}
		return nil, err
	}
	if fresh {
		err = d.make(c)
	} else {
		err = d.resume(c)
	}
	if err == nil {
		err = d.writeConfigs()
	}
	if err != nil {
		d.unlock()
		return nil, err
	}
	return d, nil
}

// emptyOrNew makes sure that nothing of somebody else's is in dir. What an interrupted first start left is no obstacle.
func emptyOrNew(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != devLock && !strings.HasPrefix(e.Name(), manifestName) {
			return fmt.Errorf("%s is not empty and was not made by `barnabas dev` (it holds %s and no %s): choose another --dir", dir, e.Name(), manifestName)
		}
	}
	return nil
}

// make chooses ids and ports and writes the manifest, in one atomic step.
func (d *directory) make(c Config) error {
	first := func(port, otherwise int) int {
		if port == 0 {
			return otherwise
		}
		return port
	}
	d.manifest = manifest{Format: 1, Dir: c.Dir, ClusterID: newID()}
	for i := range max(c.Nodes, 1) {
		d.manifest.Nodes = append(d.manifest.Nodes, nodeManifest{
			ID: i + 1, DirectoryID: newID(), Kafka: first(c.KafkaPort, 9092) + i, ZooKeeper: first(c.ZooKeeperPort, 2181) + i,
			Admin: first(c.AdminPort, 8080) + i, Peer: first(c.PeerPort, 7946) + i,
		})
	}
	used := map[int]string{}
	for _, n := range d.manifest.Nodes {
		for _, p := range n.ports() {
			use := fmt.Sprintf("%s of node %d", p.name, n.ID)
			if other, twice := used[p.port]; twice {
				return fmt.Errorf("port %d would be both %s and %s: move one of them", p.port, other, use)
			}
			used[p.port] = use
		}
	}
	return replace(filepath.Join(d.path, manifestName), d.manifest)
}

// resume reads the manifest and refuses what would make another cluster of it.
func (d *directory) resume(c Config) error {
	file := filepath.Join(d.path, manifestName)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &d.manifest); err != nil || d.manifest.Format != 1 || len(d.manifest.Nodes) == 0 {
		return fmt.Errorf("%s was not written by this version of `barnabas dev`: choose another --dir", file)
	}
	m := d.manifest
	if c.Nodes != 0 && c.Nodes != len(m.Nodes) {
		return fmt.Errorf("%s was made with %d node(s), not %d: use --nodes %d or another --dir", d.path, len(m.Nodes), c.Nodes, len(m.Nodes))
	}
	for _, p := range []struct {
		flag      string
		want, got int
	}{{"--kafka-port", c.KafkaPort, m.Nodes[0].Kafka}, {"--zk-port", c.ZooKeeperPort, m.Nodes[0].ZooKeeper},
		{"--admin-port", c.AdminPort, m.Nodes[0].Admin}, {"--cluster-port", c.PeerPort, m.Nodes[0].Peer}} {
		if p.want != 0 && p.want != p.got {
			return fmt.Errorf("%s was made with %s %d, not %d: leave the flag away or use another --dir", d.path, p.flag, p.got, p.want)
		}
	}
	return nil
}

var logDirsLine = regexp.MustCompile(`(?m)^log\.dirs=.*$`)

// writeConfigs writes the configuration files that are missing; those that are there keep what was edited by hand, except
// for the data path of a directory that was moved.
func (d *directory) writeConfigs() error {
	var voters []string
	for _, n := range d.manifest.Nodes {
		voters = append(voters, n.DirectoryID+"@"+net.JoinHostPort(loopback, strconv.Itoa(n.Peer)))
	}
	moved := d.manifest.Dir != d.path
	for _, n := range d.manifest.Nodes {
		file := d.node(n.ID, configName)
		text, err := os.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			text = []byte(d.configText(n, voters))
		case err != nil:
			return err
		case !moved:
			continue
		default:
			text = logDirsLine.ReplaceAllLiteral(text, []byte("log.dirs="+d.node(n.ID, "data")))
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := replaceBytes(file, text); err != nil {
			return err
		}
	}
	if !moved {
		return nil
	}
	d.manifest.Dir = d.path
	return replace(filepath.Join(d.path, manifestName), d.manifest)
}

func (d *directory) configText(n nodeManifest, voters []string) string {
	return fmt.Sprintf(`# Node %d of a local cluster, written by barnabas dev. Other keys may be added; the ids must stay.
node.id=%d
log.dirs=%s
listeners=PLAINTEXT://%s:%d
zookeeper.port=%d
admin.port=%d
cluster.port=%d
barnabas.cluster.id=%s
barnabas.directory.id=%s
barnabas.voters=%s
# A new group waits half a second for more members, anew as long as they come (elsewhere 1000).
group.initial.rebalance.delay.ms=500
`, n.ID, n.ID, d.node(n.ID, "data"), loopback, n.Kafka, n.ZooKeeper, n.Admin, n.Peer, d.manifest.ClusterID, n.DirectoryID,
		strings.Join(voters, ","))
}

// newID is a random UUID as Kafka writes one: 22 characters of base64url, never with a dash in front.
func newID() string {
	for {
		var b [16]byte
		rand.Read(b[:]) // never fails (crypto/rand)
		if s := base64.RawURLEncoding.EncodeToString(b[:]); s[0] != '-' {
			return s
		}
	}
}

// lock takes an advisory lock on a file, which the system releases when the process ends. Without wait it fails with
// unix.EWOULDBLOCK when another process has it.
func lock(file string, wait bool) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		if err = unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	return func() { f.Close() }, nil
}

// replace writes v as JSON over file by an atomic rename.
func replace(file string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return replaceBytes(file, append(text, '\n'))
}

func replaceBytes(file string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when the rename succeeded
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	return err
}

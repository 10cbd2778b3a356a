package node

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
)

// identity is what makes a data directory this one: Kafka's meta.properties, with the ids that matter here.
type identity struct {
	Directory id.DirectoryID // the Raft server id; made with the directory
	ClusterID string         // "" until the directory belongs to a cluster
	Unsynced  bool           // a run acknowledged what was only in the page cache (flush.on.ack=false)
}

// dataDir is an opened data directory: locked, with its identity.
type dataDir struct {
	fs   vfs.FS
	path string
	lock io.Closer
	identity
	// keepsLog: whatever earlier runs acknowledged is on this disk, for they synced it first.
	keepsLog bool
}

func (d *dataDir) raft() string       { return filepath.Join(d.path, "raft") }
func (d *dataDir) partitions() string { return filepath.Join(d.path, "partitions") }
func (d *dataDir) metaFile() string   { return filepath.Join(d.path, "meta.properties") }

// openDataDir locks a directory, making it if need be. want holds ids that are known before the start (dev): a directory
// with others belongs to something else and is refused.
func openDataDir(fsys vfs.FS, path string, want identity) (*dataDir, error) {
	if err := vfs.EnsureDir(fsys, path); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	d := &dataDir{fs: fsys, path: path}
	var err error
	if d.lock, err = fsys.Lock(filepath.Join(path, ".lock")); err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			return nil, fmt.Errorf("data directory %s is in use by another process: stop it, or give this node a log.dirs of its own", path)
		}
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := d.load(want); err != nil {
		d.lock.Close()
		return nil, err
	}
	return d, nil
}

func (d *dataDir) close() error { return d.lock.Close() }

func (d *dataDir) load(want identity) error {
	b, err := vfs.ReadFile(d.fs, d.metaFile())
	switch {
	case errors.Is(err, vfs.ErrNotExist):
		return d.create(want)
	case err != nil:
		return fmt.Errorf("data directory: %w", err)
	}
	if d.identity, err = parseMeta(b); err != nil {
		return fmt.Errorf("%s: %w", d.metaFile(), err)
	}
	if want.Directory != "" && want.Directory != d.Directory {
		return fmt.Errorf("data directory %s is %s, the configuration expects %s: it belongs to another node", d.path, d.Directory, want.Directory)
	}
	if want.ClusterID != "" && d.ClusterID != "" && want.ClusterID != d.ClusterID {
		return fmt.Errorf("data directory %s belongs to cluster %s, the configuration names %s", d.path, d.ClusterID, want.ClusterID)
	}
	return nil
}

// create makes the identity of an empty directory. A directory that holds data without one is not ours to touch.
func (d *dataDir) create(want identity) error {
	names, err := d.fs.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	for _, n := range names {
		if n != ".lock" && n != "lost+found" && !strings.HasSuffix(n, ".tmp") {
			return fmt.Errorf("data directory %s has no meta.properties but is not empty (%s): use an empty directory", d.path, n)
		}
	}
	d.Directory = want.Directory
	if d.Directory == "" {
		d.Directory = id.DirectoryID(newUUID())
	}
	return d.save()
}

// joined remembers the cluster that the directory belongs to from now on.
func (d *dataDir) joined(clusterID string) error {
	if d.ClusterID == clusterID {
		return nil
	}
	d.ClusterID = clusterID
	return d.save()
}

// acksAre notes how this run acknowledges, before it does, so that the next one knows what its disk is worth.
func (d *dataDir) acksAre(unsynced bool) error {
	d.keepsLog = !d.Unsynced
	if d.Unsynced == unsynced {
		return nil
	}
	d.Unsynced = unsynced
	return d.save()
}

func (d *dataDir) save() error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "version=1\ndirectory.id=%s\n", d.Directory)
	if d.ClusterID != "" {
		fmt.Fprintf(&b, "cluster.id=%s\n", d.ClusterID)
	}
	if d.Unsynced {
		b.WriteString("unsynced.acks=true\n")
	}
	if err := vfs.WriteFileAtomic(d.fs, d.metaFile(), b.Bytes()); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}

func parseMeta(b []byte) (identity, error) {
	var i identity
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		switch key {
		case "directory.id":
			i.Directory = id.DirectoryID(value)
		case "cluster.id":
			i.ClusterID = value
		case "unsynced.acks":
			i.Unsynced = value == "true"
		case "version":
			if value != "1" {
				return i, fmt.Errorf("version %q, this build reads 1", value)
			}
		case "broker.id", "node.id":
			return i, errors.New("written by Apache Kafka: its data cannot be taken over in place; use an empty log.dirs")
		}
	}
	if i.Directory == "" {
		return i, errors.New("has no directory.id: the file is damaged; restore it or start with an empty directory")
	}
	return i, lines.Err()
}

// newUUID is 16 random bytes as Kafka writes its ids: base64url without padding, 22 characters, no leading '-'.
func newUUID() string {
	for {
		var b [16]byte
		rand.Read(b[:]) // never fails (crypto/rand)
		if s := base64.RawURLEncoding.EncodeToString(b[:]); s[0] != '-' {
			return s
		}
	}
}

package raftmeta

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/barnabas-mq/barnabas/internal/vfs"
)

const (
	logCacheEntries = 256
	walSegmentBytes = 64 << 20
	corruptSuffix   = ".corrupt"
)

// stores are the three stores of one node, healed and in agreement.
type stores struct {
	stable *boltdb.BoltStore // term and vote
	wal    *walLog
	log    *healStore
	snaps  *snapStore
}

// openStores opens (or makes) dir/raft.db, dir/wal and dir/snapshots and heals what a kill left. reopen is called when an
// installed snapshot makes a new raft instance necessary. A directory in use by another process is an error.
func openStores(dir string, fs vfs.FS, segmentBytes int, log *slog.Logger, reopen func()) (_ *stores, err error) {
	s := &stores{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	walDir := filepath.Join(dir, "wal")
	if err := vfs.EnsureDir(vfs.OS(), walDir); err != nil { // raft-wal and bolt do not go through fs
		return nil, fmt.Errorf("raftmeta: log directory: %w", err)
	}
	if s.stable, err = boltdb.New(boltdb.Options{
		Path: filepath.Join(dir, "raft.db"), BoltOptions: &bbolt.Options{Timeout: time.Second},
	}); err != nil {
		s.stable = nil
		return nil, fmt.Errorf("raftmeta: open term store %s (is another process using it?): %w", dir, err)
	}
	if err := vfs.OS().SyncDir(dir); err != nil { // bolt does not: a power cut could take the first vote with it
		return nil, fmt.Errorf("raftmeta: sync %s: %w", dir, err)
	}
	if s.wal, err = openWAL(walDir, segmentBytes, log); err != nil {
		return nil, err
	}
	cache, err := raft.NewLogCache(logCacheEntries, s.wal)
	if err != nil {
		return nil, fmt.Errorf("raftmeta: %w", err)
	}
	s.log = newHealStore(cache, reopen)
	if s.snaps, err = openSnapStore(fs, filepath.Join(dir, "snapshots"), log); err != nil {
		return nil, err
	}
	s.snaps.final = func(r snapRef, received bool) error {
		if received {
			return s.log.received(r)
		}
		s.log.setSnapshot(r)
		return nil
	}
	return s, s.heal()
}

// heal makes log and snapshots agree. A corrupt snapshot is put aside; it is fatal unless an older one and the log
// together reach past it, since the entries it held may exist nowhere else on this node.
func (s *stores) heal() error {
	ref, corrupt, err := s.snaps.newest()
	if err != nil {
		return err
	}
	if len(corrupt) > 0 {
		var index, term uint64
		_, last, err := s.log.bounds()
		if err != nil {
			return err
		}
		if _, err := fmt.Sscanf(corrupt[0], "%d-%d", &index, &term); err != nil || last < index {
			return fmt.Errorf("%w: %s, and the log ends at %d: remove this data directory and join again", ErrSnapshotCorrupt, corrupt[0], last)
		}
		var l raft.Log
		if ref.index > 0 && s.log.inner.GetLog(ref.index+1, &l) != nil {
			return fmt.Errorf("%w: %s, and the log does not continue the older one of %d: remove this data directory and join again",
				ErrSnapshotCorrupt, corrupt[0], ref.index)
		}
	}
	if err := s.log.open(ref); err != nil {
		return err
	}
	for _, n := range corrupt {
		p := filepath.Join(s.snaps.dir, n)
		if err := s.snaps.fs.Rename(p, p+corruptSuffix); err != nil {
			return fmt.Errorf("raftmeta: put corrupt snapshot aside: %w", err)
		}
	}
	return nil
}

func (s *stores) close() error {
	var errs []error
	if s.wal != nil {
		errs = append(errs, s.wal.Close())
	}
	if s.stable != nil {
		errs = append(errs, s.stable.Close())
	}
	return errors.Join(errs...)
}

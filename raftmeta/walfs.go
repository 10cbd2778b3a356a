package raftmeta

import (
	"errors"
	"os"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"

	"github.com/barnabas-mq/barnabas/internal/vfs"
)

// zeroAhead is how far in front of what is written a file of the log is filled with zeros.
const zeroAhead = 256 << 10

// walFS is raft-wal's file system with cheaper syncs, of which every entry needs one on each voter. raft-wal reserves a file's
// space and then syncs with fsync: both the new modification time and the first use of a reserved block go through the journal of the
// file system, and so wait for everybody else's. Here a file is filled with zeros a piece ahead, and synced with fdatasync, which
// then has only data to write. Zeros are what reserved space reads as, so nobody sees a difference.
type walFS struct{ *fs.FS }

// Create implements types.VFS.
func (w walFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := w.FS.Create(dir, name, size)
	if err != nil {
		return nil, err
	}
	return newWalFile(f, false)
}

// OpenWriter implements types.VFS.
func (w walFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := w.FS.OpenWriter(dir, name)
	if err != nil {
		return nil, err
	}
	return newWalFile(f, true)
}

// walFile is one file of the log, which is only appended to. One goroutine writes and syncs.
type walFile struct {
	types.WritableFile
	os     *os.File
	size   int64 // reserved
	zeroed int64 // nothing but zeros, or what was written, up to here
	synced bool  // once, with its name
}

func newWalFile(f types.WritableFile, synced bool) (types.WritableFile, error) {
	w := &walFile{WritableFile: f, synced: synced}
	switch f := f.(type) {
	case *os.File:
		w.os = f
	case *fs.File:
		w.os = &f.File
	default:
		return f, nil
	}
	i, err := w.os.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w.size = i.Size()
	return w, nil
}

// WriteAt implements io.WriterAt.
func (w *walFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := w.WritableFile.WriteAt(p, off)
	if end := off + int64(n); err == nil && end > w.zeroed {
		w.zeroed = end
		if ahead := min(end+zeroAhead, w.size) - end; ahead > 0 {
			if _, err := w.WritableFile.WriteAt(make([]byte, ahead), end); err != nil {
				return n, err
			}
			w.zeroed += ahead
		}
	}
	return n, err
}

// Sync implements types.WritableFile.
func (w *walFile) Sync() error {
	if !w.synced {
		if err := w.WritableFile.Sync(); err != nil { // also its directory
			return err
		}
		w.synced = true
		return nil
	}
	return vfs.Datasync(w.os)
}

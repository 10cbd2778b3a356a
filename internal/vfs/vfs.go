// Package vfs is the disk seam: all bytes that must survive a crash pass through an FS, so that tests can lose what
// was not synced, tear pages, and make any operation fail or hang.
//
// The contract is POSIX's, read strictly. Data of a file is durable after its Sync. A name (created, removed, renamed)
// is durable after SyncDir of the directory that holds it, and not before, even if the file itself was synced.
//
// OS is the real thing; Mem is one in memory with CrashClone; WithFaults wraps either. The package starts no goroutine.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"
)

// Sentinels, for errors.Is. ErrNotExist and ErrExist are those of io/fs.
var (
	ErrNotExist = fs.ErrNotExist
	ErrExist    = fs.ErrExist
	// ErrLocked says that another process, or another holder in this one, has the lock.
	ErrLocked = errors.New("file is locked by another holder")
)

// FS is a file system. Methods may be called by many goroutines at once; the order of calls that race is undefined.
// Errors wrap the cause and name operation and path, as *fs.PathError does.
type FS interface {
	// Create makes an empty file for reading and writing; an existing one is cut to nothing.
	Create(name string) (File, error)
	// Open opens a file for reading only.
	Open(name string) (File, error)
	// OpenRW opens an existing file for reading and writing.
	OpenRW(name string) (File, error)
	// Remove deletes a file or an empty directory. Open files stay readable.
	Remove(name string) error
	// Rename moves a file or directory; a file at newname is replaced, atomically.
	Rename(oldname, newname string) error
	// MkdirAll makes a directory and its parents; it is no error if it exists. EnsureDir also makes it durable.
	MkdirAll(name string) error
	// ReadDir lists the names in a directory, sorted.
	ReadDir(name string) ([]string, error)
	// Stat describes a file or directory.
	Stat(name string) (Info, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// Lock creates the file if need be and takes an exclusive lock on it, which ends with Close or the process.
	// It never waits: ErrLocked if somebody has it.
	Lock(name string) (io.Closer, error)
}

// File is an open file. ReadAt may run beside anything but Close; WriteAt, Truncate and Sync of one file are ordered by
// their caller. Sync may run beside WriteAt: bytes whose WriteAt returned before Sync began are durable when it returns nil.
// After an error of Sync nothing may be assumed of any byte not synced before, and a retry proves nothing: reopen and check.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes data and size durable (fdatasync).
	Sync() error
	// Truncate sets the size; added bytes are zero.
	Truncate(size int64) error
	// Size is the present size in bytes.
	Size() (int64, error)
	// Close does not sync.
	Close() error
	// Name is the path given at open.
	Name() string
}

// Info is what Stat tells.
type Info struct {
	Size    int64
	ModTime time.Time
	IsDir   bool
}

// EnsureDir makes a directory with all its parents, durably: every level that was missing is synced in its parent.
func EnsureDir(fsys FS, dir string) error {
	dir = filepath.Clean(dir)
	info, err := fsys.Stat(dir)
	switch {
	case err == nil && info.IsDir:
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: dir, Err: fmt.Errorf("a file stands in its place: %w", ErrExist)}
	case !errors.Is(err, ErrNotExist):
		return err
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := EnsureDir(fsys, parent); err != nil {
			return err
		}
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return err
	}
	return fsys.SyncDir(parent)
}

// ReadFile reads a whole file.
func ReadFile(fsys FS, name string) (data []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	data = make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err == io.EOF && int64(n) == size {
		err = nil
	}
	return data[:n], err
}

// WriteFileAtomic replaces a file so that after a crash at any point either the old or the new content is there, whole,
// and after it returned the new. It writes name+".tmp", which a crash may leave behind.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

// RemoveAll deletes a tree, children first; it is no error if there is none. It syncs nothing.
func RemoveAll(fsys FS, name string) error {
	info, err := fsys.Stat(name)
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir {
		names, err := fsys.ReadDir(name)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := RemoveAll(fsys, filepath.Join(name, n)); err != nil {
				return err
			}
		}
	}
	if err := fsys.Remove(name); err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	return nil
}

// Writer appends to a file from an offset on, for code that wants an io.Writer. Not for concurrent use.
type Writer struct {
	f   File
	off int64
}

// NewWriter writes to f from byte off.
func NewWriter(f File, off int64) *Writer { return &Writer{f: f, off: off} }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.f.WriteAt(p, w.off)
	w.off += int64(n)
	return n, err
}

// Offset is where the next Write goes.
func (w *Writer) Offset() int64 { return w.off }

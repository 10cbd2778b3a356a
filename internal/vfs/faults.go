package vfs

import (
	"fmt"
	"io"
)

// OpKind names an operation that can be made to fail.
type OpKind int

// The operations. Those of a File come after OpLock.
const (
	OpCreate OpKind = iota
	OpOpen
	OpOpenRW
	OpRemove
	OpRename
	OpMkdirAll
	OpReadDir
	OpStat
	OpSyncDir
	OpLock
	OpReadAt
	OpWriteAt
	OpSync
	OpTruncate
	OpSize
	OpClose
)

var opNames = [...]string{"create", "open", "openrw", "remove", "rename", "mkdirall", "readdir", "stat", "syncdir", "lock",
	"readat", "writeat", "sync", "truncate", "size", "close"}

func (k OpKind) String() string {
	if k < 0 || int(k) >= len(opNames) {
		return fmt.Sprintf("op(%d)", int(k))
	}
	return opNames[k]
}

// Op is one operation about to happen. Off and Len are those of ReadAt, WriteAt and Truncate (its size in Off).
type Op struct {
	Kind OpKind
	Name string // for Rename the old name
	Off  int64
	Len  int
}

// ShortWrite, returned by a predicate for OpWriteAt, writes the first N bytes and then fails with Err: a disk that fills up.
type ShortWrite struct {
	N   int
	Err error
}

func (s *ShortWrite) Error() string { return fmt.Sprintf("after %d bytes: %v", s.N, s.Err) }
func (s *ShortWrite) Unwrap() error { return s.Err }

// WithFaults asks before every operation; an error is returned instead of doing it (say unix.EIO or unix.ENOSPC; a Close still
// closes). The predicate runs without a lock held and may wait: a slow disk. It is called by every goroutine that uses the FS.
func WithFaults(fsys FS, before func(Op) error) FS { return &faultFS{fsys, before} }

type faultFS struct {
	FS
	before func(Op) error
}

func (f *faultFS) check(kind OpKind, name string) error { return f.checkOp(Op{Kind: kind, Name: name}) }

func (f *faultFS) checkOp(op Op) error {
	if err := f.before(op); err != nil {
		return fmt.Errorf("%s %s: %w", op.Kind, op.Name, err)
	}
	return nil
}

func (f *faultFS) file(kind OpKind, name string, open func(string) (File, error)) (File, error) {
	if err := f.check(kind, name); err != nil {
		return nil, err
	}
	inner, err := open(name)
	if err != nil {
		return nil, err
	}
	return &faultFile{inner, f}, nil
}

func (f *faultFS) Create(name string) (File, error) { return f.file(OpCreate, name, f.FS.Create) }
func (f *faultFS) Open(name string) (File, error)   { return f.file(OpOpen, name, f.FS.Open) }
func (f *faultFS) OpenRW(name string) (File, error) { return f.file(OpOpenRW, name, f.FS.OpenRW) }

func (f *faultFS) Remove(name string) error {
	if err := f.check(OpRemove, name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *faultFS) Rename(oldname, newname string) error {
	if err := f.check(OpRename, oldname); err != nil {
		return err
	}
	return f.FS.Rename(oldname, newname)
}

func (f *faultFS) MkdirAll(name string) error {
	if err := f.check(OpMkdirAll, name); err != nil {
		return err
	}
	return f.FS.MkdirAll(name)
}

func (f *faultFS) ReadDir(name string) ([]string, error) {
	if err := f.check(OpReadDir, name); err != nil {
		return nil, err
	}
	return f.FS.ReadDir(name)
}

func (f *faultFS) Stat(name string) (Info, error) {
	if err := f.check(OpStat, name); err != nil {
		return Info{}, err
	}
	return f.FS.Stat(name)
}

func (f *faultFS) SyncDir(name string) error {
	if err := f.check(OpSyncDir, name); err != nil {
		return err
	}
	return f.FS.SyncDir(name)
}

func (f *faultFS) Lock(name string) (io.Closer, error) {
	if err := f.check(OpLock, name); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

type faultFile struct {
	File
	fs *faultFS
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.checkOp(Op{Kind: OpReadAt, Name: f.Name(), Off: off, Len: len(p)}); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	op := Op{Kind: OpWriteAt, Name: f.Name(), Off: off, Len: len(p)}
	err := f.fs.before(op)
	if err == nil {
		return f.File.WriteAt(p, off)
	}
	n := 0
	if short, ok := err.(*ShortWrite); ok && short.N > 0 {
		var inner error
		if n, inner = f.File.WriteAt(p[:min(short.N, len(p))], off); inner != nil {
			err = inner
		}
	}
	return n, fmt.Errorf("%s %s: %w", op.Kind, op.Name, err)
}

func (f *faultFile) Sync() error {
	if err := f.fs.check(OpSync, f.Name()); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.fs.checkOp(Op{Kind: OpTruncate, Name: f.Name(), Off: size}); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Size() (int64, error) {
	if err := f.fs.check(OpSize, f.Name()); err != nil {
		return 0, err
	}
	return f.File.Size()
}

func (f *faultFile) Close() error {
	err := f.fs.check(OpClose, f.Name())
	if closeErr := f.File.Close(); err == nil {
		err = closeErr
	}
	return err
}

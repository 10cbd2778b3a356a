package vfs

import (
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// pageSize is the unit in which Mem remembers what a page held at the last sync.
const pageSize = 4096

// Mem is a file system in memory that remembers what is durable; CrashClone makes of it what a power loss might leave.
// "/" and "." exist from the start. Methods may be called by many goroutines.
type Mem struct {
	mu    sync.RWMutex
	root  *node
	locks map[string]bool
	now   func() time.Time
}

var _ FS = (*Mem)(nil)

// NewMem makes an empty file system. now stamps files (nil: time.Now).
func NewMem(now func() time.Time) *Mem {
	if now == nil {
		now = time.Now
	}
	return &Mem{root: newDir(now()), locks: map[string]bool{}, now: now}
}

// node is a file or a directory, guarded by Mem.mu.
type node struct {
	isDir bool
	mtime time.Time

	// A file: its present bytes, its size at the last sync, and the old content of each page changed since.
	data       []byte
	syncedSize int64
	before     map[int64][]byte

	// A directory: its present names, and what was done to them since the last SyncDir, oldest first, over the synced ones.
	names   map[string]*node
	synced  map[string]*node
	pending []dirOp
}

// dirOp is one change of names: set gets child, drop goes; either may be empty. A rename within one directory is one op,
// which a crash keeps or loses whole, as journaling file systems do.
type dirOp struct {
	set, drop string
	child     *node
}

func newDir(mtime time.Time) *node {
	return &node{isDir: true, mtime: mtime, names: map[string]*node{}, synced: map[string]*node{}}
}

func (d *node) apply(op dirOp) {
	if op.drop != "" {
		delete(d.names, op.drop)
	}
	if op.set != "" {
		d.names[op.set] = op.child
	}
	d.pending = append(d.pending, op)
}

func pathErr(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

func split(name string) []string {
	clean := strings.Trim(filepath.Clean(name), "/")
	if clean == "" || clean == "." {
		return nil
	}
	return strings.Split(clean, "/")
}

// find returns the node, or nil.
func (m *Mem) find(parts []string) *node {
	n := m.root
	for _, p := range parts {
		if n == nil || !n.isDir {
			return nil
		}
		n = n.names[p]
	}
	return n
}

// parent returns the directory of a path and the last name.
func (m *Mem) parent(op, name string) (*node, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", pathErr(op, name, fs.ErrInvalid)
	}
	d := m.find(parts[:len(parts)-1])
	if d == nil || !d.isDir {
		return nil, "", pathErr(op, name, ErrNotExist)
	}
	return d, parts[len(parts)-1], nil
}

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, last, err := m.parent("create", name)
	if err != nil {
		return nil, err
	}
	n := d.names[last]
	switch {
	case n == nil:
		n = &node{mtime: m.now(), before: map[int64][]byte{}}
		d.apply(dirOp{set: last, child: n})
	case n.isDir:
		return nil, pathErr("create", name, syscall.EISDIR)
	default:
		n.truncate(0)
		n.mtime = m.now()
	}
	return &memFile{m: m, n: n, name: name, writable: true}, nil
}

// Open implements FS.
func (m *Mem) Open(name string) (File, error) { return m.open("open", name, false) }

// OpenRW implements FS.
func (m *Mem) OpenRW(name string) (File, error) { return m.open("openrw", name, true) }

func (m *Mem) open(op, name string, writable bool) (File, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n := m.find(split(name))
	if n == nil {
		return nil, pathErr(op, name, ErrNotExist)
	}
	if n.isDir {
		return nil, pathErr(op, name, syscall.EISDIR)
	}
	return &memFile{m: m, n: n, name: name, writable: writable}, nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, last, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	n := d.names[last]
	if n == nil {
		return pathErr("remove", name, ErrNotExist)
	}
	if n.isDir && len(n.names) > 0 {
		return pathErr("remove", name, syscall.ENOTEMPTY)
	}
	d.apply(dirOp{drop: last})
	return nil
}

// Rename implements FS.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, oldLast, err := m.parent("rename", oldname)
	if err != nil {
		return err
	}
	to, newLast, err := m.parent("rename", newname)
	if err != nil {
		return err
	}
	n := from.names[oldLast]
	if n == nil {
		return pathErr("rename", oldname, ErrNotExist)
	}
	if old := to.names[newLast]; old != nil && old != n {
		switch {
		case old.isDir != n.isDir:
			return pathErr("rename", newname, ErrExist)
		case old.isDir && len(old.names) > 0:
			return pathErr("rename", newname, syscall.ENOTEMPTY)
		}
	}
	if from == to {
		if oldLast != newLast {
			from.apply(dirOp{set: newLast, drop: oldLast, child: n})
		}
		return nil
	}
	to.apply(dirOp{set: newLast, child: n})
	from.apply(dirOp{drop: oldLast})
	return nil
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for _, p := range split(name) {
		next := n.names[p]
		if next == nil {
			next = newDir(m.now())
			n.apply(dirOp{set: p, child: next})
		}
		if !next.isDir {
			return pathErr("mkdir", name, syscall.ENOTDIR)
		}
		n = next
	}
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]string, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.dir("readdir", name)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(n.names)), nil
}

func (m *Mem) dir(op, name string) (*node, error) {
	n := m.find(split(name))
	if n == nil {
		return nil, pathErr(op, name, ErrNotExist)
	}
	if !n.isDir {
		return nil, pathErr(op, name, syscall.ENOTDIR)
	}
	return n, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (Info, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n := m.find(split(name))
	if n == nil {
		return Info{}, pathErr("stat", name, ErrNotExist)
	}
	return Info{Size: int64(len(n.data)), ModTime: n.mtime, IsDir: n.isDir}, nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.dir("syncdir", name)
	if err != nil {
		return err
	}
	n.synced = maps.Clone(n.names)
	n.pending = nil
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	clean := filepath.Clean(name)
	m.mu.RLock()
	held := m.locks[clean]
	m.mu.RUnlock()
	if held {
		return nil, pathErr("lock", name, ErrLocked)
	}
	if _, err := m.Stat(name); err != nil {
		f, err := m.Create(name)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[clean] {
		return nil, pathErr("lock", name, ErrLocked)
	}
	m.locks[clean] = true
	return &memLock{m: m, name: clean}, nil
}

type memLock struct {
	m    *Mem
	name string
	once sync.Once
}

func (l *memLock) Close() error {
	l.once.Do(func() {
		l.m.mu.Lock()
		defer l.m.mu.Unlock()
		delete(l.m.locks, l.name)
	})
	return nil
}

// remember keeps the synced content of the pages that [from, to) touches, once each until the next sync.
func (n *node) remember(from, to int64) {
	for page := from / pageSize; page*pageSize < to; page++ {
		start := page * pageSize
		if start >= n.syncedSize {
			return
		}
		if _, ok := n.before[page]; !ok {
			// Bytes past the synced size are not part of the synced content, and before holds only that.
			end := min(start+pageSize, n.syncedSize, int64(len(n.data)))
			if end > start {
				n.before[page] = slices.Clone(n.data[start:end])
			}
		}
	}
}

func (n *node) truncate(size int64) {
	old := int64(len(n.data))
	if size < old {
		n.remember(size, old)
		n.data = n.data[:size]
		return
	}
	n.grow(size)
}

// grow extends the data with zeros.
func (n *node) grow(size int64) {
	old := int64(len(n.data))
	if size <= old {
		return
	}
	n.data = slices.Grow(n.data, int(size-old))[:size]
	clear(n.data[old:])
}

type memFile struct {
	m        *Mem
	n        *node
	name     string
	writable bool
	closed   bool // guarded by m.mu
}

func (f *memFile) check(op string, write bool) error {
	if f.closed {
		return pathErr(op, f.name, fs.ErrClosed)
	}
	if write && !f.writable {
		return pathErr(op, f.name, fs.ErrPermission)
	}
	return nil
}

func (f *memFile) Name() string { return f.name }

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	if err := f.check("read", false); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathErr("read", f.name, fs.ErrInvalid)
	}
	if off >= int64(len(f.n.data)) {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("write", true); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathErr("write", f.name, fs.ErrInvalid)
	}
	end := off + int64(len(p))
	f.n.remember(off, end)
	f.n.grow(end)
	copy(f.n.data[off:], p)
	f.n.mtime = f.m.now()
	return len(p), nil
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("sync", false); err != nil {
		return err
	}
	f.n.syncedSize = int64(len(f.n.data))
	clear(f.n.before)
	return nil
}

func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("truncate", true); err != nil {
		return err
	}
	if size < 0 {
		return pathErr("truncate", f.name, fs.ErrInvalid)
	}
	f.n.truncate(size)
	f.n.mtime = f.m.now()
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	if err := f.check("size", false); err != nil {
		return 0, err
	}
	return int64(len(f.n.data)), nil
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("close", false); err != nil {
		return err
	}
	f.closed = true
	return nil
}

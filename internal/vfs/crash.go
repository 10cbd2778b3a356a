package vfs

import (
	"math/rand/v2"
	"slices"
)

// Crash says what a power loss leaves of what was not synced. The zero value loses all of it.
type Crash struct {
	// Keep is the chance, 0 to 1, of each unsynced unit of data and of each unsynced change of a directory.
	Keep float64
	// Unit is how much data a disk writes whole: 512 or 4096 bytes; 0 draws one of the two per file.
	Unit int64
	// Torn lets one unit of each file hold a prefix of its new bytes, of any length, before its old ones.
	Torn bool
}

// CrashClone returns what the file system would hold after a power loss now; m itself goes on untouched, as do its open files.
// Durable data and names are always there. Of the rest each unit and each change of a name survives by chance, in no order; a
// file may be as long as it was, with zeros or old bytes where its data did not survive. Locks are free.
func (m *Mem) CrashClone(rng *rand.Rand, c Crash) *Mem {
	m.mu.RLock()
	defer m.mu.RUnlock()
	cl := crasher{rng: rng, c: c, done: map[*node]*node{}}
	return &Mem{root: cl.node(m.root), locks: map[string]bool{}, now: m.now}
}

type crasher struct {
	rng  *rand.Rand
	c    Crash
	done map[*node]*node
}

func (cl *crasher) keep() bool { return cl.rng.Float64() < cl.c.Keep }

func (cl *crasher) node(n *node) *node {
	if out, ok := cl.done[n]; ok {
		return out
	}
	out := &node{isDir: n.isDir, mtime: n.mtime}
	cl.done[n] = out
	if n.isDir {
		cl.dir(n, out)
	} else {
		cl.file(n, out)
	}
	return out
}

func (cl *crasher) dir(n, out *node) {
	survivors := map[string]*node{}
	for name, child := range n.synced {
		survivors[name] = child
	}
	for _, op := range n.pending {
		if !cl.keep() {
			continue
		}
		if op.drop != "" {
			delete(survivors, op.drop)
		}
		if op.set != "" {
			survivors[op.set] = op.child
		}
	}
	names := make([]string, 0, len(survivors))
	for name := range survivors {
		names = append(names, name)
	}
	slices.Sort(names) // a map's order would make the draw differ between runs of one seed
	out.names, out.synced = map[string]*node{}, map[string]*node{}
	for _, name := range names {
		child := cl.node(survivors[name])
		out.names[name], out.synced[name] = child, child
	}
}

func (cl *crasher) file(n, out *node) {
	unit := cl.c.Unit
	if unit == 0 {
		unit = []int64{512, 4096}[cl.rng.IntN(2)]
	}
	out.before = map[int64][]byte{}
	size := n.syncedSize
	if now := int64(len(n.data)); now != size && cl.keep() {
		size = now // a size that shrank or grew survives whole, or below in part
	} else if now > size && cl.c.Keep > 0 {
		size += cl.rng.Int64N((now-size)/unit+1) * unit
	}
	old := n.syncedContent()
	out.data = make([]byte, size)
	copy(out.data, old)
	mayTear := cl.c.Torn
	for start := int64(0); start < size; start += unit {
		end := min(start+unit, size, int64(len(n.data)))
		if end <= start || !n.dirty(start, end) {
			continue
		}
		switch {
		case cl.keep():
			copy(out.data[start:end], n.data[start:end])
		case mayTear && cl.rng.IntN(2) == 0:
			mayTear = false
			copy(out.data[start:end], n.data[start:start+cl.rng.Int64N(end-start+1)])
		}
	}
	out.syncedSize = size
}

// syncedContent is the file as the last Sync left it.
func (n *node) syncedContent() []byte {
	out := make([]byte, n.syncedSize)
	copy(out, n.data)
	for page, content := range n.before {
		copy(out[page*pageSize:], content)
	}
	return out
}

// dirty says whether any page in [start, end) was changed since the last sync.
func (n *node) dirty(start, end int64) bool {
	if end > n.syncedSize {
		return true
	}
	for page := start / pageSize; page*pageSize < end; page++ {
		if _, ok := n.before[page]; ok {
			return true
		}
	}
	return false
}

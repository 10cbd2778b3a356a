package state

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/tidwall/btree"
)

// row is what a table holds.
type row[T any] interface {
	*T
	encode(*enc)
	decode(*dec)
}

// Table numbers are in snapshots and hashes: only ever appended.
const (
	tMeta = iota + 1
	tLanes
	tBrokers
	tTopics
	tPartitions
	tConfigs
	tSessions
	tZnodes
	tEphemerals
	tGroups
	tOffsets
	tTopicNames
	tLegacies
	tFences
)

// tree holds rows in the order of their keys. Rows have no Copy or IsoCopy method, which btree would call for each row of a node
// that it copies.
type tree[R any] = btree.Map[string, R]

// treeDegree is half of the most children of a tree's node. An entry copies the nodes above what it changes: larger nodes make an
// entry of one change dearer, smaller ones an entry of many.
const treeDegree = 16

// table is one tree that Apply writes; Apply is its only user.
type table[T any, R row[T]] struct {
	id     byte
	rows   *tree[R]
	frozen *tree[R] // rows as last published; nil: changed since
	sum    *uint64  // the state's running hash; nil: not tracked
}

func newTable[T any, R row[T]](id byte) *table[T, R] {
	return &table[T, R]{id: id, rows: btree.NewMap[string, R](treeDegree)}
}

func (t *table[T, R]) get(key string) (R, bool) { return t.rows.Get(key) }

func (t *table[T, R]) put(key string, r R) {
	t.frozen = nil
	old, had := t.rows.Set(key, r)
	if t.sum != nil {
		if had {
			*t.sum -= rowHash(t.id, key, old.encode)
		}
		*t.sum += rowHash(t.id, key, r.encode)
	}
}

func (t *table[T, R]) del(key string) bool {
	t.frozen = nil
	old, had := t.rows.Delete(key)
	if had && t.sum != nil {
		*t.sum -= rowHash(t.id, key, old.encode)
	}
	return had
}

// collect returns the keys and rows below a prefix, so that the caller may change the table while it goes through them.
func (t *table[T, R]) collect(prefix string) (keys []string, rows []R) {
	walkKeys(t.rows, prefix, func(k string, r R) bool {
		keys, rows = append(keys, k), append(rows, r)
		return true
	})
	return keys, rows
}

// walkKeys calls fn for each row whose key begins with prefix, in order, until it returns false. fn must not write to the tree.
func walkKeys[R any](t *tree[R], prefix string, fn func(key string, r R) bool) {
	t.Ascend(prefix, func(k string, r R) bool { return strings.HasPrefix(k, prefix) && fn(k, r) })
}

// walk is walkKeys for rows alone.
func walk[R any](t *tree[R], prefix string, fn func(R) bool) {
	walkKeys(t, prefix, func(_ string, r R) bool { return fn(r) })
}

// freeze publishes what was written; the tree never changes again.
func (t *table[T, R]) freeze() *tree[R] {
	if t.frozen == nil {
		t.frozen = t.rows.Copy()
	}
	return t.frozen
}

// rowHash is one row's share of the state hash; shares are added up, so the order of changes does not matter.
func rowHash(table byte, key string, encode func(*enc)) uint64 {
	e := enc{b: binary.AppendUvarint([]byte{table}, uint64(len(key)))}
	e.b = append(e.b, key...)
	encode(&e)
	h := sha256.Sum256(e.b)
	return binary.LittleEndian.Uint64(h[:])
}

// Keys. 0 separates parts: no name or path holds one.

func keyU32(v uint32) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return string(b[:])
}

func keyU64(v uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return string(b[:])
}

func keyName(name string) string { return name + "\x00" }

func keyNames(a, b string) string { return a + "\x00" + b + "\x00" }

// partitionsKey is of the chunk that a partition is in.
func partitionsKey(topic string, p int32) string {
	return topic + "\x00" + keyU32(uint32(p/partitionChunk))
}

// offsetsKey is of the chunk that a partition's offset is in.
func offsetsKey(group, topic string, p int32) string {
	return group + "\x00" + topic + "\x00" + keyU32(uint32(p/offsetChunk))
}

// znodeKey puts a node's children side by side: parent, 0, name.
func znodeKey(path string) string {
	if path == "/" {
		return "\x00"
	}
	parent, name := SplitPath(path)
	return parent + "\x00" + name
}

// znodePath is the path of a znodeKey; false for what is none.
func znodePath(key string) (path string, ok bool) {
	parent, name, ok := strings.Cut(key, "\x00")
	return strings.TrimSuffix(parent, "/") + "/" + name, ok
}

func ephemeralKey(session int64, path string) string { return keyU64(uint64(session)) + path }

package state

import (
	"crypto/sha256"
	"encoding/binary"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
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

// table is one writable radix tree; Apply is its only user.
type table[T any, R row[T]] struct {
	id     byte
	txn    *iradix.Txn[R]
	frozen *iradix.Tree[R] // as last published; nil: changed since
	sum    *uint64         // the state's running hash; nil: not tracked
}

func newTable[T any, R row[T]](id byte, from *iradix.Tree[R]) *table[T, R] {
	if from == nil {
		from = iradix.New[R]()
	}
	return &table[T, R]{id: id, txn: from.Txn(), frozen: from}
}

func (t *table[T, R]) get(key []byte) (R, bool) { return t.txn.Get(key) }

func (t *table[T, R]) put(key []byte, r R) {
	t.frozen = nil
	old, had := t.txn.Insert(key, r)
	if t.sum != nil {
		if had {
			*t.sum -= rowHash(t.id, key, old.encode)
		}
		*t.sum += rowHash(t.id, key, r.encode)
	}
}

func (t *table[T, R]) del(key []byte) bool {
	t.frozen = nil
	old, had := t.txn.Delete(key)
	if had && t.sum != nil {
		*t.sum -= rowHash(t.id, key, old.encode)
	}
	return had
}

// collect returns the keys and rows below a prefix, so that the caller may change the table while it goes through them.
func (t *table[T, R]) collect(prefix []byte) (keys [][]byte, rows []R) {
	t.txn.Root().WalkPrefix(prefix, func(k []byte, r R) bool {
		keys, rows = append(keys, k), append(rows, r)
		return false
	})
	return keys, rows
}

// freeze publishes what was written; the tree never changes again.
func (t *table[T, R]) freeze() *iradix.Tree[R] {
	if t.frozen == nil {
		t.frozen = t.txn.CommitOnly()
	}
	return t.frozen
}

// rowHash is one row's share of the state hash; shares are added up, so the order of changes does not matter.
func rowHash(table byte, key []byte, encode func(*enc)) uint64 {
	e := enc{b: binary.AppendUvarint([]byte{table}, uint64(len(key)))}
	e.b = append(e.b, key...)
	encode(&e)
	h := sha256.Sum256(e.b)
	return binary.LittleEndian.Uint64(h[:])
}

// Keys. 0 separates parts: no name or path holds one.

func keyU32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func keyU64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func keyParts(parts ...string) []byte { return appendParts(0, parts) }

func keyChunk(chunk int32, parts ...string) []byte {
	return binary.BigEndian.AppendUint32(appendParts(4, parts), uint32(chunk))
}

// appendParts makes a key in one allocation, with room for what follows.
func appendParts(room int, parts []string) []byte {
	for _, p := range parts {
		room += len(p) + 1
	}
	b := make([]byte, 0, room)
	for _, p := range parts {
		b = append(append(b, p...), 0)
	}
	return b
}

// znodeKey puts a node's children side by side: parent, 0, name.
func znodeKey(path string) []byte {
	if path == "/" {
		return []byte{0}
	}
	parent, name := SplitPath(path)
	return append(append(append(make([]byte, 0, len(path)+2), parent...), 0), name...)
}

func ephemeralKey(session int64, path string) []byte {
	return append(keyU64(uint64(session)), path...)
}

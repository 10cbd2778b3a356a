package main

import (
	"fmt"
	"hash/crc32"
	"math/bits"
	"sync"
)

// ledger is the account of the run: what was sent, what was acked, what arrived. Keys are 1, 2, ... in the order of sending.
// It holds about 30 bytes a line, so that millions of lines need no database. All methods may be called at the same time.
type ledger struct {
	mu      sync.Mutex
	sent    []digest // by key-1
	parts   []partitionLedger
	byOwner []int64 // records received by each member

	acked, unknownAcks    int64
	received, redelivered int64 // distinct places; deliveries of a place after its first
	corrupt, strangers    int64 // wrong content for its key; keys that were never sent
	twoKeys               int64 // a place that showed two keys
	firstFault            string
}

// digest proves a value: its length and CRC32 (IEEE).
type digest struct {
	length int32
	crc    uint32
}

// partitionLedger holds, by offset, the key that was acked and the key that arrived there; 0 for none.
type partitionLedger struct{ acked, got []uint32 }

func newLedger(partitions, members int, expected int) *ledger {
	return &ledger{sent: make([]digest, 0, expected), parts: make([]partitionLedger, partitions), byOwner: make([]int64, members)}
}

// send notes the next line, before it goes out.
func (l *ledger) send(line []byte) {
	d := digest{int32(len(line)), crc32.ChecksumIEEE(line)}
	l.mu.Lock()
	l.sent = append(l.sent, d)
	l.mu.Unlock()
}

// set grows s to hold i and stores v there; it returns what was there.
func set(s *[]uint32, i int64, v uint32) (old uint32) {
	if i >= int64(len(*s)) {
		*s = append(*s, make([]uint32, i+1-int64(len(*s)))...)
	}
	old, (*s)[i] = (*s)[i], v
	return old
}

// valid says whether a place and key can exist; others are counted, never stored.
func (l *ledger) valid(partition int, offset int64, key uint64) bool {
	return partition >= 0 && partition < len(l.parts) && offset >= 0 && offset < 1<<31 && key >= 1 && key <= uint64(len(l.sent))
}

// ack notes that the producer was told of the record's place.
func (l *ledger) ack(partition int, offset int64, key uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.valid(partition, offset, key) {
		l.unknownAcks++
		l.fault("ack of key %d at %d/%d, which was not sent", key, partition, offset)
		return
	}
	l.acked++
	if old := set(&l.parts[partition].acked, offset, uint32(key)); old != 0 && old != uint32(key) {
		l.twoKeys++
		l.fault("partition %d offset %d was acked for keys %d and %d", partition, offset, old, key)
	}
}

// receive notes a delivery to a member.
func (l *ledger) receive(member, partition int, offset int64, key uint64, d digest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.valid(partition, offset, key) {
		l.strangers++
		l.fault("received key %d at %d/%d, which was not sent", key, partition, offset)
		return
	}
	l.byOwner[member]++
	if want := l.sent[key-1]; want != d {
		l.corrupt++
		l.fault("key %d at %d/%d has length %d and CRC %08x, sent were %d and %08x", key, partition, offset, d.length, d.crc, want.length, want.crc)
	}
	switch old := set(&l.parts[partition].got, offset, uint32(key)); old {
	case 0:
		l.received++
	case uint32(key):
		l.redelivered++
	default:
		l.twoKeys++
		l.fault("partition %d offset %d was received with keys %d and %d", partition, offset, old, key)
	}
}

// fault keeps the first one, for the reader. The lock is held.
func (l *ledger) fault(format string, args ...any) {
	if l.firstFault == "" {
		l.firstFault = fmt.Sprintf(format, args...)
	}
}

// counts are the totals for progress.
func (l *ledger) counts() (sent, acked, received int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.sent)), l.acked, l.received
}

// account is the result.
type account struct {
	sent, acked, received, lost       int64
	keysTwice, redelivered            int64 // keys at two offsets; deliveries beyond the first of an offset
	unacked                           int64 // received although no ack came (it may come at most for lines that failed)
	corrupt, strangers, contradictory int64
	members                           []int64
	firstFault                        string
}

// bad says whether the run broke a promise.
func (a account) bad() bool {
	return a.lost > 0 || a.keysTwice > 0 || a.corrupt > 0 || a.strangers > 0 || a.contradictory > 0 || a.acked != a.sent
}

// total closes the account.
func (l *ledger) total() account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := account{sent: int64(len(l.sent)), acked: l.acked, received: l.received, redelivered: l.redelivered, corrupt: l.corrupt,
		strangers: l.strangers + l.unknownAcks, contradictory: l.twoKeys, members: append([]int64(nil), l.byOwner...)}
	places := newBitmap(len(l.sent) + 1)
	twice := newBitmap(len(l.sent) + 1)
	for n, p := range l.parts {
		for o := range max(len(p.acked), len(p.got)) {
			acked, got := at(p.acked, o), at(p.got, o)
			if acked != 0 && got == 0 {
				a.lost++
				l.fault("key %d was acked at %d/%d and never received", acked, n, o)
			}
			if acked == 0 && got != 0 {
				a.unacked++
			}
			if acked != 0 && got != 0 && acked != got {
				a.contradictory++
				l.fault("partition %d offset %d was acked for key %d and received with key %d", n, o, acked, got)
			}
			key := max(acked, got)
			if key != 0 && places.set(key) {
				twice.set(key)
				l.fault("key %d is at two offsets, one of them %d/%d", key, n, o)
			}
		}
	}
	a.keysTwice = twice.count()
	a.firstFault = l.firstFault
	return a
}

func at(s []uint32, i int) uint32 {
	if i < len(s) {
		return s[i]
	}
	return 0
}

// bitmap is a set of small numbers.
type bitmap []uint64

func newBitmap(n int) bitmap { return make(bitmap, n/64+1) }

// set adds n and says whether it was there.
func (b bitmap) set(n uint32) bool {
	was := b[n/64]&(1<<(n%64)) != 0
	b[n/64] |= 1 << (n % 64)
	return was
}

func (b bitmap) count() (n int64) {
	for _, w := range b {
		n += int64(bits.OnesCount64(w))
	}
	return n
}

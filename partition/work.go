package partition

import (
	"sync"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// workQueue is what applied entries left for the reconciler to look at. Only names: the reconciler looks at the newest view.
type workQueue struct {
	mu   sync.Mutex
	b    batch
	kick chan struct{}
}

// batch is what was queued between two rounds.
type batch struct {
	all        bool
	deleted    []deletedTopic // in order
	topics     map[string]struct{}
	configs    map[string]struct{}
	partitions map[id.TopicPartition]struct{}
	brokers    map[id.BrokerID]struct{}
}

type deletedTopic struct {
	name string
	id   id.TopicID
}

func newBatch() batch {
	return batch{
		topics: map[string]struct{}{}, configs: map[string]struct{}{},
		partitions: map[id.TopicPartition]struct{}{}, brokers: map[id.BrokerID]struct{}{},
	}
}

func newWorkQueue() workQueue { return workQueue{b: newBatch(), kick: make(chan struct{}, 1)} }

func (q *workQueue) do(fn func(*batch)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	fn(&q.b)
}

func (q *workQueue) everything()          { q.do(func(b *batch) { b.all = true }) }
func (q *workQueue) topic(t string)       { q.do(func(b *batch) { b.topics[t] = struct{}{} }) }
func (q *workQueue) config(t string)      { q.do(func(b *batch) { b.configs[t] = struct{}{} }) }
func (q *workQueue) broker(n id.BrokerID) { q.do(func(b *batch) { b.brokers[n] = struct{}{} }) }
func (q *workQueue) partition(tp id.TopicPartition) {
	q.do(func(b *batch) { b.partitions[tp] = struct{}{} })
}
func (q *workQueue) delete(t string, tid id.TopicID) {
	q.do(func(b *batch) { b.deleted = append(b.deleted, deletedTopic{t, tid}) })
}

func (q *workQueue) wake() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

func (q *workQueue) take() batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.b
	q.b = newBatch()
	return b
}

package partition

import (
	"fmt"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// Timestamps with a meaning of their own in ListOffsets.
const (
	TimestampLatest   int64 = -1
	TimestampEarliest int64 = -2
	TimestampMax      int64 = -3 // v7, KIP-734
)

// TimedOffset answers ListOffsets v1 and later. Offset -1: no record is that young.
type TimedOffset struct {
	Offset      id.Offset
	Timestamp   int64 // ms, or -1
	LeaderEpoch id.LeaderEpoch
}

// shown is a log with the marks that may be shown for one epoch.
type shown struct {
	r     *replica
	log   *log.Log
	hw    id.Offset
	epoch id.LeaderEpoch
}

// leader finds a partition that is led here, for a question about its log. The answer must pass mayAnswer.
func (m *Manager) leader(topic string, partition int32, epoch id.LeaderEpoch) (shown, error) {
	r, err := m.replica(topic, partition)
	if err != nil {
		return shown{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.leadsLocked(epoch); err != nil {
		return shown{}, err
	}
	return shown{r: r, log: r.s.log, hw: r.s.hw, epoch: r.s.epoch}, nil
}

// mayAnswer is asked after the data was read.
func (s *shown) mayAnswer() error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if err := s.r.leadsLocked(-1); err != nil {
		return err
	}
	if s.r.s.epoch != s.epoch {
		return fmt.Errorf("%w: %s changed hands", ErrNotLeader, s.r)
	}
	_, err := s.r.shownLocked(s.hw)
	return err
}

// ListOffset answers ListOffsets v1 and later for one partition: the end that the isolation level shows (TimestampLatest), the
// log start (TimestampEarliest), the record with the largest timestamp (TimestampMax), or the first record whose timestamp is at
// least ts. epoch is the client's leader epoch, -1: not checked. Errors: ErrUnknownTopicOrPartition, ErrNotLeader,
// ErrFencedLeaderEpoch, ErrUnknownLeaderEpoch, ErrOffsetNotAvailable (clients before v5 know ErrNotLeader in its place), ErrStorage.
func (m *Manager) ListOffset(topic string, partition int32, ts int64, epoch id.LeaderEpoch, _ Isolation) (TimedOffset, error) {
	s, err := m.leader(topic, partition, epoch)
	if err != nil {
		return TimedOffset{}, err
	}
	out := TimedOffset{Offset: -1, Timestamp: -1, LeaderEpoch: -1}
	switch ts {
	case TimestampLatest:
		out.Offset, out.LeaderEpoch = s.hw, s.epochOf(s.hw)
	case TimestampEarliest:
		out.Offset = s.log.LogStart()
		out.LeaderEpoch = s.epochOf(out.Offset)
	default:
		out, err = s.byTime(ts)
	}
	if no := s.mayAnswer(); no != nil {
		return TimedOffset{}, no
	}
	return out, err
}

// epochOf is the leader epoch of the record at an offset; at the end, the epoch that the next record will have.
func (s *shown) epochOf(offset id.Offset) id.LeaderEpoch {
	if offset >= s.log.LogEnd() {
		return s.epoch
	}
	return s.log.EpochAt(offset)
}

func (s *shown) byTime(ts int64) (TimedOffset, error) {
	none := TimedOffset{Offset: -1, Timestamp: -1, LeaderEpoch: -1}
	var t log.TimedOffset
	var found bool
	var err error
	switch {
	case ts == TimestampMax:
		t, found, err = s.log.OffsetOfMaxTimestamp()
	case ts < 0:
		return none, fmt.Errorf("%w: timestamp %d", ErrInvalidRequest, ts)
	default:
		t, found, err = s.log.OffsetForTime(ts)
	}
	if err != nil {
		return none, s.r.checkDisk("search by time", s.log, err)
	}
	if !found || t.Offset >= s.hw || t.Timestamp == record.NoTimestamp {
		return none, nil
	}
	return TimedOffset{Offset: t.Offset, Timestamp: t.Timestamp, LeaderEpoch: t.LeaderEpoch}, nil
}

// ListOffsetsV0 answers ListOffsets v0 for one partition: at most n offsets, newest first, out of the segments' first offsets and
// the end, of those not younger than ts; TimestampLatest takes all, TimestampEarliest only the log start. Segments' ages are
// their files' (kafka.log.UnifiedLog.legacyFetchOffsetsBefore). It may be empty. Errors as for ListOffset.
func (m *Manager) ListOffsetsV0(topic string, partition int32, ts int64, n int) ([]id.Offset, error) {
	s, err := m.leader(topic, partition, -1)
	if err != nil {
		return nil, err
	}
	segments, err := s.log.Segments()
	if err != nil {
		return nil, s.r.checkDisk("list segments", s.log, err)
	}
	type candidate struct {
		offset id.Offset
		time   int64
	}
	var cs []candidate // oldest first
	for _, seg := range segments {
		cs = append(cs, candidate{max(seg.Base, s.log.LogStart()), seg.ModTime})
	}
	if segments[len(segments)-1].Size > 0 {
		cs = append(cs, candidate{s.log.LogEnd(), m.deps.Clock.Now().UnixMilli()})
	}
	from := len(cs) - 1
	switch {
	case ts == TimestampEarliest:
		from = 0
	case ts != TimestampLatest:
		for from >= 0 && cs[from].time > ts {
			from--
		}
	}
	var out []id.Offset // newest first; what is above the high watermark shows as that, once
	for ; from >= 0; from-- {
		if at := min(cs[from].offset, s.hw); len(out) == 0 || at < out[len(out)-1] || cs[from].offset <= s.hw {
			out = append(out, at)
		}
	}
	if err := s.mayAnswer(); err != nil {
		return nil, err
	}
	return out[:min(len(out), max(n, 0))], nil
}

// EndOffsetForEpoch answers OffsetForLeaderEpoch: the largest epoch that is at most the asked one, and where it ends; (-1, -1) if
// the asked one is newer than all. current is the client's leader epoch, -1: not checked. Errors as for ListOffset.
func (m *Manager) EndOffsetForEpoch(topic string, partition int32, current, asked id.LeaderEpoch) (id.LeaderEpoch, id.Offset, error) {
	s, err := m.leader(topic, partition, current)
	if err != nil {
		return -1, -1, err
	}
	end := s.log.EndOffsetForEpoch(asked)
	if err := s.mayAnswer(); err != nil {
		return -1, -1, err
	}
	return end.Epoch, end.End, nil
}

// Marks are a partition's offsets.
type Marks struct {
	LogStart, HighWatermark, LogEnd id.Offset
}

// Marks returns the marks of a partition that is led here and may be shown. Errors as for ListOffset.
func (m *Manager) Marks(topic string, partition int32) (Marks, error) {
	s, err := m.leader(topic, partition, -1)
	if err != nil {
		return Marks{}, err
	}
	out := Marks{LogStart: s.log.LogStart(), HighWatermark: s.hw, LogEnd: s.log.LogEnd()}
	return out, s.mayAnswer()
}

// LogInfo describes a replica on this broker's disk.
type LogInfo struct {
	id.TopicPartition
	TopicID id.TopicID
	Role    string // leading, following, idle, failed
	Size    int64  // bytes of its segments
	Lag     int64  // records that the replica knows to be behind: a follower's end below the high watermark
	// LogStart, HighWatermark and LogEnd as this replica knows them, for reports and metrics: no promise to a consumer.
	LogStart, HighWatermark, LogEnd id.Offset
	Failure                         error // why it stopped, or what it cannot serve; shows in JSON as its text
}

// failure is an error that encodes as its text.
type failure string

func (f failure) Error() string { return string(f) }

// DescribeLogs lists every replica here, in no order (DescribeLogDirs; Failure also for broker reports).
func (m *Manager) DescribeLogs() []LogInfo {
	var out []LogInfo
	for _, r := range m.all() {
		r.mu.Lock()
		info := LogInfo{TopicPartition: r.tp, TopicID: r.topicID, Role: r.s.role.String()}
		if l := r.s.log; l != nil {
			info.Size, info.LogStart, info.HighWatermark, info.LogEnd = l.Size(), l.LogStart(), r.s.hw, l.LogEnd()
			info.Lag = max(int64(r.s.hw-info.LogEnd), 0)
		}
		switch {
		case r.s.failure != nil:
			info.Failure = failure(r.s.failure.Error())
		case r.s.damagedAt >= 0:
			info.Failure = failure(fmt.Sprintf("damaged from offset %d on", r.s.damagedAt))
		case r.s.full != nil:
			info.Failure = failure(r.s.full.Error())
		}
		r.mu.Unlock()
		out = append(out, info)
	}
	return out
}

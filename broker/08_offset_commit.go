package broker

import (
	"context"
	"errors"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/groupcoord"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var offsetCommitAPI = register(8, 9, (*Server).offsetCommit).frames(listFrames)

// maxOffsetMetadata is offset.metadata.max.bytes, which Kafka counts in units of UTF-16 (OffsetMetadataManager).
const maxOffsetMetadata = 4096

// commitTimeout is offsets.commit.timeout.ms: clients give up after 10 s and more.
const commitTimeout = 5 * time.Second

// offsetCommit commits to the one store of offsets. Version 0, which kafka-node sends to partition leaders, is the znode's face
// and served by every broker; later versions are served by the coordinator's broker. Who commits is told by client id and
// address, since old clients name no member. From v9 on members of consumer groups commit with their epoch (KIP-848).
func (s *Server) offsetCommit(ctx context.Context, c *call, req *kmsg.OffsetCommitRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	v := s.deps.Views.View()
	cmd := &statepb.CommitOffsets{
		Group: req.Group, Member: text(req.MemberID), Generation: req.Generation, By: text(c.clientID) + "@" + c.host,
		From: statepb.OffsetOrigin_ORIGIN_KAFKA, NoEpochs: req.Version < 9,
	}
	if req.InstanceID != nil {
		cmd.Instance = text(*req.InstanceID)
	}
	if req.Version == 0 {
		cmd.From, cmd.Generation, cmd.NotSince = statepb.OffsetOrigin_ORIGIN_ZNODE, -1, int64(v.ZXID())
	}
	whole := s.refuseGroup(v, req.Group, req.Version)
	var taken []*int16 // codes of the items of cmd
	for i := range req.Topics {
		t := kmsg.NewOffsetCommitResponseTopic()
		t.Topic = req.Topics[i].Topic
		t.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, len(req.Topics[i].Partitions))
		for j := range req.Topics[i].Partitions {
			p, out := &req.Topics[i].Partitions[j], &t.Partitions[j]
			out.Partition = p.Partition
			if whole == 0 {
				out.ErrorCode = refuseOffset(v, t.Topic, p)
			} else {
				out.ErrorCode = whole
			}
			if out.ErrorCode == 0 {
				cmd.Items = append(cmd.Items, offsetItem(v, req, t.Topic, p))
				taken = append(taken, &out.ErrorCode)
			}
		}
		resp.Topics = append(resp.Topics, t)
	}
	if len(cmd.Items) > 0 {
		s.commit(ctx, cmd, taken)
	}
	return resp
}

// text is a string as Kafka's brokers read it: what is no UTF-8 becomes U+FFFD (String.decode of Java). The state takes nothing else.
func text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// utf16Len is String.length of Java.
func utf16Len(s string) (n int) {
	if len(s) <= maxOffsetMetadata { // it cannot be longer than that
		return len(s)
	}
	for _, r := range s {
		n += utf16.RuneLen(r)
	}
	return n
}

// refuseGroup returns the code that answers every part of a request for a group, 0 for none.
func (s *Server) refuseGroup(v *state.View, group string, version int16) int16 {
	if state.ValidGroupID(group) != "" {
		return kerr.InvalidGroupID.Code
	}
	if ctl, _ := v.Controller(); version > 0 && ctl != s.cfg.ID {
		return kerr.NotCoordinator.Code
	}
	return 0
}

func refuseOffset(v *state.View, topic string, p *kmsg.OffsetCommitRequestTopicPartition) int16 {
	if _, ok := v.Partition(topic, p.Partition); !ok {
		return kerr.UnknownTopicOrPartition.Code
	}
	if p.Metadata != nil && utf16Len(*p.Metadata) > maxOffsetMetadata {
		return kerr.OffsetMetadataTooLarge.Code
	}
	return 0
}

func offsetItem(v *state.View, req *kmsg.OffsetCommitRequest, topic string, p *kmsg.OffsetCommitRequestTopicPartition) *statepb.OffsetItem {
	it := &statepb.OffsetItem{Topic: topic, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: -1, RetentionMs: -1}
	if req.Version >= 6 {
		it.LeaderEpoch = p.LeaderEpoch
	}
	if req.Version >= 2 && req.Version <= 4 {
		it.RetentionMs = req.RetentionTimeMillis
	}
	if p.Metadata != nil {
		it.Metadata = text(*p.Metadata)
	}
	if row, ok := v.Topic(topic); ok { // should it be deleted meanwhile, the offset must not be that of a new one
		it.TopicId = row.ID[:]
	}
	return it
}

func (s *Server) commit(ctx context.Context, cmd *statepb.CommitOffsets, codes []*int16) {
	var r *statepb.Result
	var err error
	if cmd.From == statepb.OffsetOrigin_ORIGIN_ZNODE { // any broker takes these, and repeats them at the next coordinator
		ctx, cancel := context.WithTimeout(ctx, commitTimeout)
		defer cancel()
		r, err = s.deps.Groups.Do(ctx, &statepb.Command{Body: &statepb.Command_CommitOffsets{CommitOffsets: cmd}})
	} else {
		r, err = s.deps.Groups.Commit(ctx, commitTimeout, cmd)
	}
	whole := commitCode(r, err)
	for i, code := range codes {
		*code = whole
		if whole == 0 && i < len(r.Parts) {
			*code = commitCode(r.Parts[i], nil)
		}
	}
}

func commitCode(r *statepb.Result, err error) int16 {
	switch {
	case errors.Is(err, groupcoord.ErrNotCoordinator):
		return kerr.NotCoordinator.Code
	case errors.Is(err, state.ErrTooLarge): // as GroupMetadataManager of what fits no message
		return kerr.InvalidCommitOffsetSize.Code
	case err != nil:
		return kerr.RequestTimedOut.Code
	case r.Code == statepb.Code_OFFSET_STALE: // a zombie's commit: refusing it would kill some old clients (groups.md, "Commits")
		return 0
	case r.Code == statepb.Code_INVALID:
		return kerr.InvalidGroupID.Code
	}
	if f := settled(r, nil); f != nil {
		return f.code
	}
	return 0
}

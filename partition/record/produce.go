package record

import (
	"fmt"
	"math"
)

// ProduceRules says how a Produce payload for one partition is judged.
type ProduceRules struct {
	// Version is that of the Produce request: 0 to 2 carry magic 0 and 1, or one magic 2 batch, whatever the version: clients exist
	// that send a newer format in an older request (pykafka 2.8.0), and Kafka never refused it. 3 and up carry exactly one
	// magic 2 batch.
	Version int16
	// MaxBatchBytes is max.message.bytes: the largest stored batch. Required.
	MaxBatchBytes int
	// TimestampType is message.timestamp.type; with LogAppendTime all records get Now.
	TimestampType TimestampType
	// Now is the wall clock in milliseconds.
	Now int64
	// MaxTimestampDiff is how far a CreateTime may be from Now, in milliseconds; 0 means any.
	MaxTimestampDiff int64
	// Deep unpacks packed magic 2 batches too and checks every record, as Apache Kafka does. Without it a client with a fault of its
	// own can store a batch with a right CRC that nobody can unpack; plain batches are always walked.
	Deep bool
}

// Prepared is a payload ready to be appended by a leader.
type Prepared struct {
	// Batches are one or more magic 2 batches; offsets rise by one from 0. Given magic 2, it is the payload itself, changed in place.
	Batches []byte
	// Records is how many there are; 0 (and no batches) for an empty payload of Produce v0-v2, which is no error.
	Records int
	// Converted says that magic 0 or 1 came in.
	Converted bool
}

// PrepareProduce checks a payload and brings it to magic 2. A magic 2 batch is not re-encoded and, if packed, unpacked only if
// Deep asks for it.
//
// Messages of magic 0 and 1 become one batch with the last codec seen, or several if one would pass MaxBatchBytes: an old
// producer's limit is per message, not per set. Nothing is ever dropped: a set that is cut off is refused whole.
// Errors: every sentinel of this package.
func (c *Codecs) PrepareProduce(payload []byte, r ProduceRules) (Prepared, error) {
	if r.Version < 3 {
		if _, magic, err := Peek(payload); err != nil || magic != 2 {
			return c.prepareLegacy(payload, r)
		}
	}
	if len(payload) == 0 {
		return Prepared{}, invalidf("Produce v%d needs one batch, there is none", r.Version)
	}
	if _, magic, err := Peek(payload); err != nil {
		return Prepared{}, err
	} else if magic != 2 {
		return Prepared{}, invalidf("Produce v%d needs magic 2, not %d", r.Version, magic)
	}
	b, rest, err := Next(payload)
	if err != nil {
		return Prepared{}, err
	}
	if len(rest) > 0 {
		return Prepared{}, invalidf("Produce v%d takes exactly one batch, %d bytes follow it", r.Version, len(rest))
	}
	if len(b) > r.MaxBatchBytes {
		return Prepared{}, tooLarge(len(b), r.MaxBatchBytes)
	}
	if err := b.Check(); err != nil {
		return Prepared{}, err
	}
	if err := c.judge(b, r); err != nil {
		return Prepared{}, err
	}
	if r.TimestampType == LogAppendTime {
		b.SetLogAppendTime(r.Now)
	}
	b.Assign(0, -1)
	return Prepared{Batches: b, Records: b.Count()}, nil
}

// judge applies what holds for a client's batch but not for every stored one (LogValidator.validateBatch).
func (c *Codecs) judge(b Batch, r ProduceRules) error {
	codec := b.Codec()
	switch {
	case b.Count() == 0:
		return invalidf("batch without records")
	case b.Count()-1 != int(b.LastOffsetDelta()):
		return invalidf("%d records with a last offset delta of %d", b.Count(), b.LastOffsetDelta())
	case b.IsControl():
		return invalidf("clients may not write control batches")
	case codec > Zstd, codec == Zstd && r.Version < 7:
		return fmt.Errorf("%w: %v in Produce v%d", ErrUnsupportedCompression, codec, r.Version)
	case b.TimestampType() == LogAppendTime:
		return fmt.Errorf("%w: a client may not send LogAppendTime", ErrInvalidTimestamp)
	case b.ProducerID() >= 0 && (b.BaseSequence() < 0 || b.ProducerEpoch() < 0):
		return invalidf("producer id %d with epoch %d and sequence %d", b.ProducerID(), b.ProducerEpoch(), b.BaseSequence())
	case b.ProducerID() < 0 && b.IsTransactional(): // a sequence alone is nothing to mind: franz-go sends one when it is not idempotent
		return invalidf("a transactional batch without a producer id")
	}
	if err := r.checkTimestamp(b.MaxTimestamp()); err != nil {
		return err
	}
	if err := r.checkTimestamp(b.BaseTimestamp()); err != nil {
		return err
	}
	if codec != None && !r.Deep {
		return nil
	}
	records, err := c.Records(b)
	if err != nil {
		return err
	}
	var rec Record
	for {
		if more, err := records.Next(&rec); !more {
			return err
		}
	}
}

func (r *ProduceRules) checkTimestamp(ts int64) error {
	if r.TimestampType == LogAppendTime || ts == NoTimestamp {
		return nil
	}
	if ts < 0 {
		return fmt.Errorf("%w: %d", ErrInvalidTimestamp, ts)
	}
	diff := ts - r.Now
	if r.MaxTimestampDiff > 0 && (diff > r.MaxTimestampDiff || diff < -r.MaxTimestampDiff) {
		return fmt.Errorf("%w: %d is further than %d ms from now, %d", ErrInvalidTimestamp, ts, r.MaxTimestampDiff, r.Now)
	}
	return nil
}

// prepareLegacy converts up (LogValidator.convertAndAssignOffsetsNonCompressed and its sibling).
func (c *Codecs) prepareLegacy(payload []byte, r ProduceRules) (Prepared, error) {
	if len(payload) == 0 {
		return Prepared{Converted: true}, nil
	}
	codec, err := outerCodec(payload, r)
	if err != nil {
		return Prepared{}, err
	}
	in := legacyInput{rules: r}
	if err := c.walkSet(payload, in.add); err != nil {
		return Prepared{}, err
	}
	h := PlainHeader()
	h.Codec, h.TimestampType, h.AppendTime = codec, r.TimestampType, r.Now
	out, err := c.buildWithin(nil, h, in.records(), r.MaxBatchBytes)
	if err != nil {
		return Prepared{}, err
	}
	return Prepared{Batches: out, Records: len(in.ends), Converted: true}, nil
}

// outerCodec hops over a set: magic, sizes and codecs are checked, and the last codec that packs is the batch's.
func outerCodec(set []byte, r ProduceRules) (codec Codec, err error) {
	for len(set) > 0 {
		size, magic, err := Peek(set)
		switch {
		case err != nil:
			return 0, err
		case magic < 0 || magic > 1:
			return 0, fmt.Errorf("%w: magic %d in Produce v%d", ErrUnsupportedFormat, magic, r.Version)
		case size > int64(len(set)) || size < int64(msgOverhead(magic)):
			return 0, corruptf("message of %d bytes, %d are there", size, len(set))
		case size > int64(r.MaxBatchBytes):
			return 0, tooLarge(int(size), r.MaxBatchBytes)
		}
		if own := Codec(set[atMsgAttrs] & attrCodec); own > LZ4 {
			return 0, fmt.Errorf("%w: %v in magic %d", ErrUnsupportedCompression, own, magic)
		} else if own != None {
			codec = own
		}
		set = set[size:]
	}
	return codec, nil
}

// legacyInput gathers the records of a set. Their bytes are copied, since the next wrapper is unpacked over the last one's.
type legacyInput struct {
	rules ProduceRules
	bytes []byte
	ends  []legacyRecord
}

// legacyRecord is where a record lies in legacyInput.bytes; -1 is null.
type legacyRecord struct {
	timestamp int64
	key       int
	value     int
}

func (in *legacyInput) add(outer *message, rec *Record) error {
	if outer.tsType == LogAppendTime {
		return fmt.Errorf("%w: a client may not send LogAppendTime", ErrInvalidTimestamp)
	}
	if err := in.rules.checkTimestamp(rec.Timestamp); err != nil {
		return err
	}
	if len(in.bytes)+len(rec.Key)+len(rec.Value) > math.MaxInt32/2 {
		return tooLarge(len(in.bytes), math.MaxInt32/2)
	}
	lr := legacyRecord{timestamp: rec.Timestamp, key: -1, value: -1}
	if rec.Key != nil {
		in.bytes = append(in.bytes, rec.Key...)
		lr.key = len(rec.Key)
	}
	if rec.Value != nil {
		in.bytes = append(in.bytes, rec.Value...)
		lr.value = len(rec.Value)
	}
	in.ends = append(in.ends, lr)
	return nil
}

func (in *legacyInput) records() []Record {
	out := make([]Record, len(in.ends))
	d := decoder{p: in.bytes}
	if d.p == nil {
		d.p = []byte{} // so that an empty value is not null
	}
	for i, lr := range in.ends {
		out[i] = Record{Offset: offset(i), Timestamp: lr.timestamp}
		if lr.key >= 0 {
			out[i].Key = d.take(int64(lr.key))
		}
		if lr.value >= 0 {
			out[i].Value = d.take(int64(lr.value))
		}
	}
	return out
}

// buildWithin builds one batch, or halves the records until each batch fits.
func (c *Codecs) buildWithin(dst []byte, h BatchHeader, records []Record, maxBytes int) ([]byte, error) {
	start := len(dst)
	out, err := c.Build(dst, h, records)
	if err != nil {
		return nil, err
	}
	size := len(out) - start
	if size <= maxBytes {
		return out, nil
	}
	if len(records) == 1 {
		return nil, tooLarge(size, maxBytes)
	}
	half := len(records) / 2
	if out, err = c.buildWithin(out[:start], h, records[:half], maxBytes); err != nil {
		return nil, err
	}
	return c.buildWithin(out, h, records[half:], maxBytes)
}

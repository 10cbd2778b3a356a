package log

import (
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
)

const (
	checkpointFile = "barnabas.checkpoint"
	metadataFile   = "partition.metadata"
)

// checkpoint is what must be known beside the segments.
type checkpoint struct {
	start    id.Offset // log start
	recovery id.Offset // segments that end at or below it are durable, with their indexes
	// clean says that Close wrote all indexes when the active segment was activeBase with activeSize bytes. If the file is longer
	// now, it was written to since.
	clean      bool
	activeBase id.Offset
	activeSize int64
}

const checkpointFormat = "barnabas 1\nstart %d\nrecovery %d\nclean %t %d %d\n"

func (l *Log) writeCheckpoint(c checkpoint) error {
	body := fmt.Sprintf(checkpointFormat, c.start, c.recovery, c.clean, c.activeBase, c.activeSize)
	body += fmt.Sprintf("crc %08x\n", crc32.ChecksumIEEE([]byte(body)))
	return vfs.WriteFileAtomic(l.fs, filepath.Join(l.dir, checkpointFile), []byte(body))
}

// readCheckpoint returns ok false if there is none, or none that can be trusted.
func readCheckpoint(fsys vfs.FS, dir string) (c checkpoint, ok bool, err error) {
	data, err := vfs.ReadFile(fsys, filepath.Join(dir, checkpointFile))
	if errors.Is(err, vfs.ErrNotExist) {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	text := string(data)
	i := strings.LastIndex(text, "crc ")
	if i < 0 || text[i:] != fmt.Sprintf("crc %08x\n", crc32.ChecksumIEEE(data[:i])) {
		return c, false, nil
	}
	_, err = fmt.Sscanf(text[:i], checkpointFormat, &c.start, &c.recovery, &c.clean, &c.activeBase, &c.activeSize)
	return c, err == nil, nil
}

// WriteMetadata writes Kafka's partition.metadata, which ties a directory to a topic id.
func WriteMetadata(fsys vfs.FS, dir string, topic id.TopicID) error {
	body := fmt.Sprintf("version: 0\ntopic_id: %s\n", base64.RawURLEncoding.EncodeToString(topic[:]))
	return vfs.WriteFileAtomic(fsys, filepath.Join(dir, metadataFile), []byte(body))
}

// ReadMetadata reads partition.metadata. vfs.ErrNotExist if there is none.
func ReadMetadata(fsys vfs.FS, dir string) (topic id.TopicID, err error) {
	data, err := vfs.ReadFile(fsys, filepath.Join(dir, metadataFile))
	if err != nil {
		return topic, err
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "topic_id: "); ok {
			if raw, err := base64.RawURLEncoding.DecodeString(text); err == nil && len(raw) == len(topic) {
				return id.TopicID(raw), nil
			}
		}
	}
	return topic, fmt.Errorf("%s holds no topic id", filepath.Join(dir, metadataFile))
}

// checkTopic compares partition.metadata with the topic the caller means, and writes it if there is none.
func checkTopic(fsys vfs.FS, dir string, want id.TopicID) error {
	if want == (id.TopicID{}) {
		return nil
	}
	got, err := ReadMetadata(fsys, dir)
	if errors.Is(err, vfs.ErrNotExist) {
		return WriteMetadata(fsys, dir, want)
	}
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%w: %s is of topic id %v, not %v", ErrTopicMismatch, dir, got, want)
	}
	return nil
}

package log

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/vfs"
)

// deleteSuffix marks a directory that is being deleted, as Kafka does: topic-0.<unique>-delete.
const deleteSuffix = "-delete"

// Delete closes the log and removes its directory for good. unique tells apart several deletions of one name; the topic id will do.
// After it returned, the name is free. An interrupted one is ended by FinishDeletes.
func (l *Log) Delete(unique string) error {
	l.writer.Lock()
	defer l.writer.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	var err error
	if v := l.view.Load(); !v.closed {
		err = l.closeFiles(v)
	}
	return errors.Join(err, DeleteDir(l.fs, l.dir, unique))
}

// DeleteDir deletes the directory of a log that is not open: it is renamed first, durably, so that a crash half-way leaves nothing
// that looks like a log.
func DeleteDir(fsys vfs.FS, dir, unique string) error {
	gone := fmt.Sprintf("%s.%s%s", dir, unique, deleteSuffix)
	if err := fsys.Rename(dir, gone); err != nil {
		return fmt.Errorf("delete log %s: %w", dir, err)
	}
	if err := fsys.SyncDir(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("delete log %s: %w", dir, err)
	}
	if err := vfs.RemoveAll(fsys, gone); err != nil {
		return fmt.Errorf("delete log %s: %w", dir, err)
	}
	return nil
}

// FinishDeletes removes what interrupted deletions left in a directory of logs, and returns the names. Call it before logs are opened.
func FinishDeletes(fsys vfs.FS, root string) ([]string, error) {
	names, err := fsys.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, n := range names {
		if !strings.HasSuffix(n, deleteSuffix) {
			continue
		}
		if err := vfs.RemoveAll(fsys, filepath.Join(root, n)); err != nil {
			return removed, err
		}
		removed = append(removed, n)
	}
	return removed, nil
}

package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// What was published stays as it was, whatever is written afterwards, and may be read meanwhile.
func TestPublishedTablesNeverChange(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type version struct {
			tree *tree[*Znode]
			rows map[string]*Znode
		}
		table, model := newTable[Znode](tZnodes), map[string]*Znode{}
		var versions []version
		var readers sync.WaitGroup
		defer readers.Wait()
		keys := rapid.Custom(func(rt *rapid.T) string { return fmt.Sprintf("%04d", rapid.IntRange(0, 3000).Draw(rt, "key")) })
		for range rapid.IntRange(1, 20).Draw(rt, "entries") {
			first, n := rapid.IntRange(0, 2900).Draw(rt, "first"), rapid.IntRange(0, 700).Draw(rt, "run")
			put := rapid.Bool().Draw(rt, "put")
			for i := first; i < min(first+n, 3000); i++ { // whole nodes come, split, empty and merge
				k, r := fmt.Sprintf("%04d", i), new(Znode)
				if put {
					table.put(k, r)
					model[k] = r
				} else if _, had := model[k]; table.del(k) != had {
					rt.Fatalf("deleted %s: it was there: %v", k, had)
				}
				if !put {
					delete(model, k)
				}
			}
			for range rapid.IntRange(0, 5).Draw(rt, "single") {
				k, r := keys.Draw(rt, "put"), new(Znode)
				table.put(k, r)
				model[k] = r
			}
			v := version{table.freeze(), maps.Clone(model)}
			versions = append(versions, v)
			readers.Go(func() { v.tree.Scan(func(string, *Znode) bool { return true }) })
		}
		for i, v := range versions {
			var got []string
			v.tree.Scan(func(k string, r *Znode) bool {
				if v.rows[k] != r {
					rt.Fatalf("version %d: %s is another row", i, k)
				}
				got = append(got, k)
				return true
			})
			if want := slices.Sorted(maps.Keys(v.rows)); !slices.Equal(got, want) || v.tree.Len() != len(want) {
				rt.Fatalf("version %d has %d rows, not %d", i, len(got), len(want))
			}
			prefix := keys.Draw(rt, "prefix")[:rapid.IntRange(0, 4).Draw(rt, "length")]
			var below []string
			walkKeys(v.tree, prefix, func(k string, _ *Znode) bool { below = append(below, k); return len(below) < 7 })
			want := slices.DeleteFunc(got, func(k string) bool { return !strings.HasPrefix(k, prefix) })
			if !slices.Equal(below, want[:min(len(want), 7)]) {
				rt.Fatalf("version %d: below %q are %v, not %v", i, prefix, below, want)
			}
		}
	})
}

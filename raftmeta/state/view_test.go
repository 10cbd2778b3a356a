package state

import (
	"fmt"
	"slices"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Walks go in order and end when they are told to, also within a row.
func TestWalksEnd(t *testing.T) {
	f := newFold(t)
	f.broker(1, "a")
	f.ok(mkTopic("t", 1, []int32{1}))
	f.ok(mkTopic("u", 2, []int32{1}))
	ses := f.ok(session()).Value
	for _, g := range []string{"g0", "g1", "g2"} {
		f.ok(create("/consumers/"+g, ""))
		f.ok(create("/consumers/"+g+"/ids", ""))
		f.ok(create("/consumers/"+g+"/owners", ""))
		f.ok(create("/consumers/"+g+"/owners/t", ""))
	}
	for p := range int32(20) {
		f.ok(commit("g0", "t", p, 5))
		f.ok(commit("g0", "u", p, 5))
	}
	f.ok(ephemeral(ses, 1, "/consumers/g0/owners/t/0"))
	f.ok(ephemeral(ses, 1, "/consumers/g1/ids/b"))
	f.ok(ephemeral(ses, 1, "/consumers/g1/ids/a"))
	f.ok(ephemeral(ses, 1, "/consumers/g2/ids/a"))
	v := f.s.View()
	walks := map[string]struct {
		walk func(fn func(string) bool)
		want []string
	}{
		"offsets": {func(fn func(string) bool) {
			v.Offsets("g0", func(topic string, o *Offset) bool { return fn(fmt.Sprint(topic, o.Partition)) })
		}, []string{"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "t10", "t11", "t12", "t13", "t14", "t15", "t16", "t17", "t18", "t19", "u0"}},
		"topic's offsets": {func(fn func(string) bool) {
			v.TopicOffsets("g0", "u", func(o *Offset) bool { return fn(fmt.Sprint(o.Partition)) })
		}, []string{"0", "1", "2"}},
		"children": {func(fn func(string) bool) {
			v.ZnodeChildren("/consumers", func(name string, _ *Znode) bool { return fn(name) })
		}, []string{"g0", "g1", "g2"}},
		"root's children": {func(fn func(string) bool) {
			v.ZnodeChildren("/", func(name string, _ *Znode) bool { return fn(name) })
		}, []string{"admin", "brokers"}},
		"topics":    {func(fn func(string) bool) { v.Topics(func(t *Topic) bool { return fn(t.Name) }) }, []string{"t", "u"}},
		"groups of": {func(fn func(string) bool) { v.GroupsOf(id.SessionID(ses), fn) }, []string{"g1", "g1", "g2"}}, // not g0, where it only owns something
	}
	for name, w := range walks {
		for most := 1; most <= len(w.want); most++ {
			var got []string
			w.walk(func(s string) bool { got = append(got, s); return len(got) < most })
			if !slices.Equal(got, w.want[:most]) {
				t.Errorf("%s, ended after %d: %v", name, most, got)
			}
		}
	}
	if m, ok := v.MemberOf(id.SessionID(ses), "g1"); !ok || m != "a" {
		t.Errorf("a session with two ids is %q, %v: the first one counts", m, ok)
	}
	if m, ok := f.s.memberOf(ses, "g1"); !ok || m != "a" {
		t.Errorf("while an entry is applied a session with two ids is %q, %v", m, ok)
	}
	if _, ok := v.MemberOf(id.SessionID(ses), "g0"); ok {
		t.Error("an owner is taken for a member")
	}
}

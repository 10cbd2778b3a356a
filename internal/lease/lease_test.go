package lease

import (
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

const s = time.Second

func TestLeaseCountsFromSending(t *testing.T) {
	var l Lease
	if _, held := l.Held(0); held {
		t.Fatal("held before the first answer")
	}
	l.Answered(10 * s)
	l.Answered(9 * s) // a late answer takes nothing away
	if until, held := l.Held(10*s + Duration - 1); !held || until != 10*s+Duration {
		t.Fatal(until, held)
	}
	if _, held := l.Held(10*s + Duration); held {
		t.Fatal("held past its end")
	}
}

func TestProofsTellTheAgeOfOlderTerms(t *testing.T) {
	p := NewProofs(100 * s)
	for _, c := range []struct {
		term       id.Term
		now, since time.Duration
	}{
		{3, 101 * s, s},     // since its start
		{3, 103 * s, 3 * s}, // the same term is no older one
		{4, 105 * s, 2 * s}, // since 3 was confirmed last
		{3, 106 * s, 3 * s}, // overtaken: it is in the memory, and does not count for its caller
		{4, 107 * s, 4 * s},
		{6, 108 * s, s},
	} {
		if since := p.Confirm(c.term, c.now); since != c.since {
			t.Errorf("term %d at %v: an older one was confirmed %v ago, want %v", c.term, c.now, since, c.since)
		}
	}
}

func TestCarriedVoteIsAQuorum(t *testing.T) {
	three := []int{1, 2, 3}
	for name, c := range map[string]struct {
		voted, leads   id.Term
		sender, leader int
		voters         []int
		want           bool
	}{
		"of three":               {5, 5, 2, 1, three, true},
		"of two":                 {5, 5, 2, 1, []int{1, 2}, true},
		"no vote":                {0, 0, 2, 1, three, false},
		"an older term":          {4, 5, 2, 1, three, false},
		"a later term":           {6, 5, 2, 1, three, false},
		"the leader's own":       {5, 5, 1, 1, three, false},
		"no voter":               {5, 5, 4, 1, three, false},
		"the leader is no voter": {5, 5, 2, 4, three, false},
		"two of five":            {5, 5, 2, 1, []int{1, 2, 3, 4, 5}, false},
	} {
		if got := Carried(c.voted, c.leads, c.sender, c.leader, c.voters); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestBookSilence(t *testing.T) {
	b := NewBook(100*s, s, 7)
	if at := b.SilentAt(1); at != 99*s+FenceAfter {
		t.Fatal("never heard: from the youngest proof", at)
	}
	if at := NewBook(100*s, time.Hour, 7).SilentAt(1); at != 100*s+Settle {
		t.Fatal("everybody gets time to report", at)
	}
	b.Heard(1, 9, 105*s)
	if b.Silent(1, 105*s+FenceAfter-1) || !b.Silent(1, 105*s+FenceAfter) {
		t.Fatal("silence from the last report")
	}
	b.Registered(1, 106*s)
	if at := b.SilentAt(1); at != 106*s+FenceAfter {
		t.Fatal(at)
	}
	if applied, ok := b.Applied(1); !ok || applied != 0 {
		t.Fatal(applied, ok)
	}
}

func TestBookGrantsOnlyToTheInformed(t *testing.T) {
	b := NewBook(0, 0, 7)
	if b.MayGrant(1, 6) || !b.MayGrant(1, 7) {
		t.Fatal("the term's first entry")
	}
	first, second := b.Hold(1), b.Hold(1)
	if b.MayGrant(1, 99) {
		t.Fatal("granted under a hold")
	}
	first(20)
	first(40) // ends once
	if b.MayGrant(1, 99) {
		t.Fatal("granted under the second hold")
	}
	second(0)
	if b.MayGrant(1, 19) || !b.MayGrant(1, 20) || !b.MayGrant(2, 7) {
		t.Fatal("after the holds")
	}
}

func TestMayServe(t *testing.T) {
	held := Lease{}
	held.Answered(10 * s)
	others := []Member{{Broker: 2, Epoch: 5}, {Broker: 3, Epoch: 6}}
	now := 11 * s
	for name, c := range map[string]struct {
		lease  Lease
		others []Member
		do     func(*Leading)
		want   bool
	}{
		"lease":                        {lease: held, others: others, want: true},
		"alone":                        {want: true},
		"nobody fetches":               {others: others},
		"one fetches":                  {others: others, do: func(l *Leading) { l.Fetched(others[0], now-s, true, now) }},
		"all fetch":                    {others: others, do: fetchAll(others, now-s, now), want: true},
		"first fetches prove nothing":  {others: others, do: func(l *Leading) { l.Fetched(others[0], 0, false, now); l.Fetched(others[1], 0, false, now) }},
		"stamps too old":               {others: others, do: fetchAll(others, now-Duration, now)},
		"stamps from the future":       {others: others, do: fetchAll(others, now+1, now)},
		"dead while its fetch counted": {others: others, do: func(l *Leading) { fetchAll(others, now-s, now)(l); l.Dead(others[0], now) }, want: true},
		"dead without a fetch":         {others: others, do: func(l *Leading) { l.Fetched(others[1], now-s, true, now); l.Dead(others[0], now) }},
		"new incarnation unseals a proof": {others: others, do: func(l *Leading) {
			fetchAll(others, now-s, now)(l)
			l.Dead(others[0], now)
			l.Fetched(Member{2, 9}, 0, false, now)
		}},
		"fetch of a dead incarnation": {others: []Member{{2, 9}}, do: func(l *Leading) { l.Fetched(others[0], now-s, true, now) }},
		"waiting":                     {lease: held, do: func(l *Leading) { l.waits[7] = now + 1 }},
		"waited":                      {lease: held, do: func(l *Leading) { l.waits[7] = now }, want: true},
		"wait ended by proof":         {lease: held, do: func(l *Leading) { l.waits[7] = never; l.Gone(7) }, want: true},
	} {
		l := NewLeading(&Following{}, TakeoverFrom{}, now)
		if c.do != nil {
			c.do(l)
		}
		until, may := l.MayServe(now, c.lease, c.others)
		if may != c.want {
			t.Errorf("%s: %v, want %v", name, may, c.want)
		}
		if may && until <= now {
			t.Errorf("%s: until %v at %v", name, until, now)
		}
	}
	// A proof that holds stays when the fetch it continued has aged.
	l := NewLeading(&Following{}, TakeoverFrom{}, now)
	fetchAll(others[:1], now, now)(l)
	l.Dead(others[0], now+s)
	if _, may := l.MayServe(now+100*s, Lease{}, others[:1]); !may {
		t.Error("the only other member is dead")
	}
	// One that came too late does not count.
	l = NewLeading(&Following{}, TakeoverFrom{}, now)
	fetchAll(others[:1], now, now)(l)
	l.Dead(others[0], now+Duration)
	if _, may := l.MayServe(now+100*s, Lease{}, others[:1]); may {
		t.Error("the member may have led before it died")
	}
}

func fetchAll(ms []Member, stamp, now time.Duration) func(*Leading) {
	return func(l *Leading) {
		for _, m := range ms {
			l.Fetched(m, stamp, true, now)
		}
	}
}

func TestNewLeadingWaits(t *testing.T) {
	followed := &Following{}
	followed.Sent(1, 9*s)
	followed.Sent(3, 10*s)
	only := &Following{}
	only.Follow()
	others := []id.BrokerID{1, 3}
	for name, c := range map[string]struct {
		past *Following
		from TakeoverFrom
		want time.Duration
	}{
		"no grace needed":    {followed, TakeoverFrom{Others: others, Live: others}, 0},
		"last reply":         {followed, TakeoverFrom{Grace: true, Others: others}, 10*s + TakeOver},
		"never fetched":      {only, TakeoverFrom{Grace: true, Others: others}, 0},
		"moved":              {followed, TakeoverFrom{Grace: true, Live: []id.BrokerID{1}, Others: others}, 20*s + TakeOver},
		"followed nobody":    {&Following{}, TakeoverFrom{Grace: true, Others: others}, never},
		"the only replica":   {&Following{}, TakeoverFrom{Grace: true}, 0},
		"moved, not fetched": {only, TakeoverFrom{Grace: true, Live: []id.BrokerID{3}, Others: others}, 20*s + TakeOver},
	} {
		l := NewLeading(c.past, c.from, 20*s)
		if got := l.ServesFrom(); got != c.want {
			t.Errorf("%s: from %v, want %v", name, got, c.want)
		}
		for _, b := range l.Waits() {
			l.Fetched(Member{b, 1}, 0, false, 20*s)
		}
		if l.ServesFrom() != 0 {
			t.Errorf("%s: waits for brokers that have resigned", name)
		}
	}
}

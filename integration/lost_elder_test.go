package integration

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// elder is a member by znodes that does what the JVM consumer does (zk-paths.md 2): gates "release", "read" (of offsets), "claim".
type elder struct {
	gates
	s         *scene
	name, id  string
	conn      *zsession
	nullFirst bool // it registers as kafka-node: without data first

	state   sync.Mutex
	session int64
	listed  []string // the ids of the generation that it acts by
	have    map[int32]bool
	offsets map[int32]int64 // as it read them before it claimed
	refused []string        // claims and reads that failed
	writes  int64           // offset that it commits when it releases; 0: none
}

func (s *scene) elder(name string, atCoordinator bool) *elder {
	return s.elderWith(name, s.session(atCoordinator, zkSession))
}

// mortal is an elder whose session is to expire.
func (s *scene) mortal(name string) *elder { return s.elderWith(name, s.session(true, shortSession)) }

func (s *scene) elderWith(name string, conn *zsession) *elder {
	return &elder{s: s, name: name, id: s.group + "_" + name, conn: conn, have: map[int32]bool{}, offsets: map[int32]int64{}}
}

// retry does one thing until a connection that lives has carried it out.
func (m *elder) retry(what string, do func() error) error {
	m.does(what)
	for {
		err := do()
		switch {
		case errors.Is(err, errLost):
			select {
			case <-m.s.quit:
				return err
			case <-time.After(5 * time.Millisecond):
			}
		case errors.Is(err, errExpired):
			select {
			case <-m.s.quit:
				return err
			default:
				m.s.fatal("%s: %s: %v", m.name, what, err)
			}
		default:
			return err
		}
	}
}

// create makes an ephemeral node; one that an earlier try has made is as good.
func (m *elder) create(what, node string, data []byte) error {
	return m.retry(what, func() error {
		err := m.conn.create(node, data, jute.FlagEphemeral)
		if !errors.Is(err, errNodeExists) {
			return err
		}
		_, stat, found := m.conn.get(node)
		switch {
		case found == nil && stat.EphemeralOwner == m.conn.session():
			return nil
		case errors.Is(found, errNoNode):
			return err
		case found != nil:
			return found
		}
		return err
	})
}

func (m *elder) register() {
	data := `{"version":1,"subscription":{"` + lostTopic + `":1},"pattern":"static","timestamp":"1400000000000"}`
	node := m.s.ids() + "/" + m.id
	var err error
	if m.nullFirst {
		if err = m.create("register", node, nil); err == nil {
			err = m.retry("set", func() error { return m.conn.set(node, []byte(data)) })
		}
	} else {
		err = m.create("register", node, []byte(data))
	}
	if err != nil {
		m.s.fatal("%s: registration: %v", m.name, err)
	}
	m.state.Lock()
	m.session = m.conn.session()
	m.state.Unlock()
}

func (s *scene) ids() string    { return "/consumers/" + s.group + "/ids" }
func (s *scene) owners() string { return "/consumers/" + s.group + "/owners/" + lostTopic }
func (s *scene) offsetNode(p int32) string {
	return fmt.Sprintf("/consumers/%s/offsets/%s/%d", s.group, lostTopic, p)
}

// mkdirs makes the group's directories, and the offsets' nodes.
func (s *scene) mkdirs() {
	if s.zk != nil {
		return
	}
	s.zk = s.session(false, zkSession)
	m := elder{s: s, name: "onlooker", conn: s.zk}
	var mkdir func(node string)
	mkdir = func(node string) {
		if node != "/" {
			mkdir(path.Dir(node))
			err := m.retry("mkdir", func() error { return s.zk.create(node, []byte("0"), 0) })
			if err != nil && !errors.Is(err, errNodeExists) {
				s.fatal("%s: %v", node, err)
			}
		}
	}
	mkdir(s.ids())
	mkdir(s.owners())
	for p := range int32(lostPartitions) {
		mkdir(s.offsetNode(p))
	}
}

// live registers and follows the ids until the scene ends.
func (m *elder) live() *elder {
	m.s.mkdirs()
	m.s.members.Go(func() {
		m.register()
		for {
			var names []string
			var changed <-chan struct{}
			err := m.retry("list", func() (err error) { names, changed, err = m.conn.children(m.s.ids(), true); return err })
			if err != nil {
				return
			}
			if !m.rebalance(names) { // as after the back-off of a JVM consumer
				select {
				case <-m.s.quit:
					return
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			m.does("follow")
			select {
			case <-changed:
			case <-m.s.quit:
				return
			}
		}
	})
	return m
}

// rebalance releases, reads offsets and claims what range gives it among the ids; false: it is to try again.
func (m *elder) rebalance(names []string) bool {
	slices.Sort(names)
	for _, name := range names {
		err := m.retry("registration", func() error { _, _, err := m.conn.get(m.s.ids() + "/" + name); return err })
		if err != nil {
			return m.fails("registration of %s: %v", name, err)
		}
	}
	if !slices.Contains(names, m.id) {
		return m.fails("it is not among %v", names)
	}
	if !m.release() {
		return true
	}
	mine := ranged(names, m.id)
	for _, p := range mine {
		if !m.pass(m.s, "read") {
			return true
		}
		var data []byte
		if err := m.retry("read", func() (err error) { data, _, err = m.conn.get(m.s.offsetNode(p)); return err }); err != nil {
			return m.fails("offset of %d: %v", p, err)
		}
		at, err := strconv.ParseInt(string(data), 10, 64)
		if err != nil {
			return m.fails("offset of %d: %v", p, err)
		}
		m.state.Lock()
		m.offsets[p] = at
		m.state.Unlock()
	}
	for _, p := range mine {
		if !m.pass(m.s, "claim") {
			return true
		}
		if err := m.create("claim", m.owner(p), []byte(m.id+"-0")); err != nil {
			return m.fails("claim of %d: %v", p, err)
		}
		m.s.take(m.name, p)
		m.state.Lock()
		m.have[p] = true
		m.state.Unlock()
	}
	m.state.Lock()
	m.listed = names
	m.state.Unlock()
	return true
}

func (m *elder) owner(p int32) string { return fmt.Sprintf("%s/%d", m.s.owners(), p) }

// release commits and gives up everything; false: the scene is over.
func (m *elder) release() bool {
	m.state.Lock()
	have, writes := []int32{}, m.writes
	for p := range m.have {
		have = append(have, p)
	}
	m.state.Unlock()
	if len(have) > 0 && !m.pass(m.s, "release") {
		return false
	}
	slices.Sort(have)
	for _, p := range have {
		if writes > 0 {
			m.writeOffset(p, writes)
		}
		m.s.give(m.name, p)
		err := m.retry("delete", func() error { return m.conn.delete(m.owner(p)) })
		select {
		case <-m.s.quit:
			return false
		default:
		}
		if err != nil && !errors.Is(err, errNoNode) {
			m.s.fatal("%s: release of %d: %v", m.name, p, err)
		}
		m.state.Lock()
		delete(m.have, p)
		m.state.Unlock()
	}
	return true
}

func (m *elder) writeOffset(p int32, offset int64) {
	err := m.retry("commit", func() error { return m.conn.set(m.s.offsetNode(p), strconv.AppendInt(nil, offset, 10)) })
	if err != nil {
		m.s.fatal("%s: commit of %d: %v", m.name, p, err)
	}
}

func (m *elder) fails(format string, args ...any) bool {
	select {
	case <-m.s.quit:
		return true
	default:
	}
	m.state.Lock()
	defer m.state.Unlock()
	m.refused = append(m.refused, m.name+": "+fmt.Sprintf(format, args...))
	for p := range m.have {
		m.s.give(m.name, p)
		_ = m.conn.delete(m.owner(p))
	}
	clear(m.have)
	return false
}

// ranged is kafka.consumer.RangeAssignor for members of one thread each.
func ranged(names []string, id string) (mine []int32) {
	at, n := int32(slices.Index(names, id)), int32(len(names))
	q, r := lostPartitions/n, lostPartitions%n
	from := q*at + min(at, r)
	for p := range q + max(0, min(1, r-at)) {
		mine = append(mine, from+p)
	}
	return mine
}

// settled says why the members have not claimed what the newest list gives them. others is how many names there are beside theirs.
func settled(pool int, members ...*elder) func() error {
	return func() error {
		for _, m := range members {
			m.state.Lock()
			listed, have := slices.Clone(m.listed), len(m.have)
			m.state.Unlock()
			if got := len(listed); pool >= 0 && got != len(members)+pool {
				return fmt.Errorf("%s acts by %v, want %d and %d of the pool", m.name, listed, len(members), pool)
			}
			if want := len(ranged(listed, m.id)); len(listed) == 0 || have != want {
				return fmt.Errorf("%s has %d partitions, want %d of %v", m.name, have, want, listed)
			}
			if err := m.is("follow"); err != nil {
				return err
			}
		}
		return nil
	}
}

// whole checks at the end that nothing failed and that the sessions are those of the beginning.
func (s *scene) whole(members ...*elder) {
	for _, m := range members {
		m.state.Lock()
		refused, session := m.refused, m.session
		m.state.Unlock()
		if len(refused) > 0 {
			s.fatal("attempts that failed: %s", strings.Join(refused, "; "))
		}
		if now := m.conn.session(); now != session {
			s.fatal("session %x of %s became %x", session, m.name, now)
		}
		var stat jute.Stat
		err := m.retry("registration", func() (err error) { _, stat, err = m.conn.get(s.ids() + "/" + m.id); return err })
		if err != nil || stat.EphemeralOwner != session {
			s.fatal("the registration of %s: %v, of session %x", m.name, err, session)
		}
	}
}

package zkcompat_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// Old consumers list the members of their group and then read each registration by itself; one that is missing fails the whole
// attempt. What a session was told of it can read, also when the next generation comes in between; a new list tells it the new one.
func TestListedRegistrationsStay(t *testing.T) {
	f := newFold(t, 1)
	n := f.coordinated(t, f.coordinate(t), 0)
	_, addr := serve(t, n.b, nil)
	dial := func() *zk.Conn {
		c, _, err := zk.Connect([]string{addr}, 30*time.Second, zk.WithLogInfo(false))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	join := func(c *zk.Conn, name string) {
		t.Helper()
		if _, err := c.Create("/consumers/g/ids/"+name, []byte(`{"version":1,"subscription":{"none":1},"pattern":"static","timestamp":"1"}`), zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	a, b := dial(), dial()
	for _, dir := range []string{"/consumers/g", "/consumers/g/ids"} {
		if _, err := a.Create(dir, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			t.Fatal(err)
		}
	}
	join(a, "a")
	join(b, "b")
	names, _, changed, err := a.ChildrenW("/consumers/g/ids")
	if err != nil || len(names) != 2 {
		t.Fatalf("members %v, %v", names, err)
	}
	b.Close()
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("nobody told of the member that left")
	}
	if data, _, err := a.Get("/consumers/g/ids/b"); err != nil || len(data) == 0 {
		t.Errorf("the registration of a member that was listed: %q, %v", data, err)
	}
	if names, _, err := a.Children("/consumers/g/ids"); err != nil || len(names) != 1 {
		t.Errorf("members after the event: %v, %v", names, err)
	}
	if _, _, err := a.Get("/consumers/g/ids/b"); !errors.Is(err, zk.ErrNoNode) {
		t.Errorf("the registration of a member that is listed no more: %v", err)
	}
}

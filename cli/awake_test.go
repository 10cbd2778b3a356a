package cli

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// frozen accepts connections and answers nothing, as the kernel does for a process that was stopped; met counts those that sent
// something with the word in it.
func frozen(t *testing.T, word string) (addr string, met *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	met = new(atomic.Int32)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { // until the other side gives up
				if got, _ := io.ReadAll(nc); bytes.Contains(got, []byte(word)) {
					met.Add(1)
				}
				nc.Close()
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String(), met
}

func TestAwake(t *testing.T) {
	ice, _ := frozen(t, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	l.Close()
	up := strings.Split(fake(t), ",")
	got := awake([]string{ice, up[0], gone}, time.Minute)
	if !slices.Equal(got, up[:1]) {
		t.Errorf("%v, want %v", got, up[:1])
	}
	if got := awake([]string{ice, gone}, 50*time.Millisecond); !slices.Equal(got, []string{ice, gone}) {
		t.Errorf("nobody answers: %v", got)
	}
	if got := awake([]string{ice}, time.Hour); !slices.Equal(got, []string{ice}) {
		t.Errorf("one seed needs no choice: %v", got)
	}
}

// A verb begins with a seed that answers.
func TestFrozenSeedIsPassedOver(t *testing.T) {
	one, met := frozen(t, "barnabas-cli")
	two, metToo := frozen(t, "barnabas-cli")
	b := one + "," + two + "," + fake(t)
	for range 12 { // each begins with a seed by chance
		ok(t, "", "cluster", "status", "-b", b)
		if n := met.Load() + metToo.Load(); n > 0 {
			t.Fatal("a verb waited for a frozen seed")
		}
	}
}

// A node that is silent costs a moment when others are named.
func TestExplainAsksTheNextNode(t *testing.T) {
	ice, met := frozen(t, "GET /v1/groups/g/rebalances")
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"group":"g","generation":3,"rebalances":[]}`))
	}))
	defer up.Close()
	got := ok(t, "", "group", "explain", "g", "-o", "json", "-a", ice+","+strings.TrimPrefix(up.URL, "http://"))
	if !strings.Contains(got, `"generation": 3`) || met.Load() == 0 {
		t.Errorf("%s, the silent node was asked %d times", got, met.Load())
	}
}

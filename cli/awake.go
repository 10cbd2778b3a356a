package cli

import (
	"context"
	"net"
	"sync"
	"time"
)

// awake returns those of the seeds that answer, as soon as one does, and all of them when none does within the limit. The kernel of a
// frozen broker accepts connections, and a client that happens to begin with that one waits there.
func awake(seeds []string, limit time.Duration) []string {
	if len(seeds) < 2 {
		return seeds
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	answers := make(chan string, len(seeds))
	var wg sync.WaitGroup
	for _, seed := range seeds {
		wg.Go(func() {
			if answering(ctx, seed) {
				answers <- seed
			}
			answers <- ""
		})
	}
	defer wg.Wait()
	defer cancel()
	var up []string
	for left := len(seeds); left > 0; {
		switch seed := <-answers; {
		case seed == "":
			left--
		case up == nil:
			// The others have a moment: the more are known, the better.
			defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
			fallthrough
		default:
			up = append(up, seed)
		}
	}
	if up == nil {
		return seeds
	}
	return up
}

// apiVersionsV0 asks any broker which versions it has, as client null.
var apiVersionsV0 = []byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff}

// answering says whether something at addr takes a request and answers, or at least hangs up, as brokers older than the request do.
func answering(ctx context.Context, addr string) bool {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(addr, "9092")
	}
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })()
	if _, err := nc.Write(apiVersionsV0); err != nil {
		return false
	}
	_, err = nc.Read(make([]byte, 1))
	return err == nil || ctx.Err() == nil
}

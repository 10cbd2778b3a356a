package broker

import "sync"

// eachLimit is how many commands of one request are in the proposer at once; they share Raft entries.
const eachLimit = 64

// each calls fn for 0 to n-1, several at a time, and returns when all are done.
func each(n int, fn func(i int)) {
	if n == 1 {
		fn(0)
		return
	}
	var wg sync.WaitGroup
	free := make(chan struct{}, eachLimit)
	for i := range n {
		free <- struct{}{}
		wg.Go(func() {
			fn(i)
			<-free
		})
	}
	wg.Wait()
}

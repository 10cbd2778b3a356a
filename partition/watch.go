package partition

// watcher is a parked call. It is woken, without being told why, and looks again.
type watcher chan struct{}

func newWatcher() watcher { return make(watcher, 1) }

func (w watcher) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// watchers are the parked calls of one mark of one replica, guarded by its lock. A call may watch a mark twice.
type watchers map[watcher]int

func (ws *watchers) add(w watcher) {
	if *ws == nil {
		*ws = watchers{}
	}
	(*ws)[w]++
}

func (ws watchers) remove(w watcher) {
	if ws[w]--; ws[w] <= 0 {
		delete(ws, w)
	}
}

func (ws watchers) wake() {
	for w := range ws {
		w.wake()
	}
}

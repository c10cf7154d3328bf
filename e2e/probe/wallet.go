package main

import (
	"crypto/tls"
	"sync"
)

// wallet is a client's cache for one server name: the last ticket, which is used once.
type wallet struct {
	mu     sync.Mutex
	ticket *tls.ClientSessionState
	fresh  bool // since took was asked
}

// Get has crypto/tls offer the ticket.
func (w *wallet) Get(string) (*tls.ClientSessionState, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ticket, w.ticket != nil
}

// Put is called for each ticket that comes; with nil for one that is used up.
func (w *wallet) Put(_ string, ticket *tls.ClientSessionState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ticket = ticket
	w.fresh = w.fresh || ticket != nil
}

func (w *wallet) holds() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ticket != nil
}

// took says whether a ticket came since it was asked last.
func (w *wallet) took() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := w.fresh
	w.fresh = false
	return fresh
}

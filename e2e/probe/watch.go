package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// Change is the first connection to an address that was given another certificate than the one before it, or that
// failed where the one before succeeded.
type Change struct {
	Time         time.Time `json:"time"` // before the connection was made
	Address      string    `json:"address"`
	SerialNumber string    `json:"serialNumber,omitempty"`
	Algorithm    string    `json:"algorithm,omitempty"`
	Error        string    `json:"error,omitempty"`
}

// watch connects to each address, over and over until ctx ends.
func watch(ctx context.Context, o options, show *json.Encoder) {
	var mutex sync.Mutex
	var watchers sync.WaitGroup
	for _, address := range o.addresses {
		watchers.Go(func() {
			var last Change
			for ctx.Err() == nil {
				now := Change{Time: time.Now(), Address: address}
				r := attempt(ctx, o, address)
				if ctx.Err() != nil {
					return
				}
				now.Error = r.Error
				if r.Certificate != nil {
					now.SerialNumber, now.Algorithm = r.Certificate.SerialNumber, r.Certificate.Algorithm
				}
				if now.SerialNumber != last.SerialNumber || now.Error != last.Error {
					last = now
					mutex.Lock()
					_ = show.Encode(now) // nobody to tell
					mutex.Unlock()
				}
				sleep(ctx, o.watch)
			}
		})
	}
	watchers.Wait()
}

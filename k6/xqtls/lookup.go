package xqtls

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/openssl"
)

// lookUpNetIP asks the machine's resolver; tests have others.
var lookUpNetIP = net.DefaultResolver.LookupNetIP

// lookUp finds an address of a host until a deadline. A name server that does not answer in time is a Timeout, as a server is.
func lookUp(ctx context.Context, host string, deadline time.Time) (string, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), nil
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	found, err := lookUpNetIP(ctx, "ip", host)
	if err == nil {
		return found[0].Unmap().String(), nil
	}
	class := shard.Connect
	var late net.Error // of the deadline, and of the resolver's own patience
	if errors.As(err, &late) && late.Timeout() {
		class = shard.Timeout
	}
	return "", &openssl.Failed{Class: class, Message: err.Error()}
}

// addresses are those of hosts: all virtual users ask for the same ones.
var addresses sync.Map

// resolve looks a host up once for all virtual users: a benchmark does not measure name servers.
func resolve(ctx context.Context, host string, deadline time.Time) (string, error) {
	if known, ok := addresses.Load(host); ok {
		return known.(string), nil
	}
	found, err := lookUp(ctx, host, deadline)
	if err != nil {
		return "", err
	}
	address, _ := addresses.LoadOrStore(host, found)
	return address.(string), nil
}

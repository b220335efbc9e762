package delayserver

// The client: which addresses it has, which connection it uses, and how calls are repeated. What happens on one connection is in
// connection.go.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	defaultAddress        = "127.0.0.1:20801"
	addressVariable       = "DELAYSERVER_SERVER"
	retriesDefault        = 3
	connectTimeoutDefault = 5 * time.Second
	addressesMax          = 64               // a member that is moved often makes no longer list
	retryAfterMax         = time.Minute      // a server that asks for a longer pause gets no second try: the caller decides
	takeoverMax           = 15 * time.Second // for so long a call looks for the primary of a cluster
)

// Options of a Client. The zero value is good.
type Options struct {
	Name           string        // name of the program, for hello
	Token          string        // for a server that asks for one
	Dialer         net.Dialer    // how to connect
	TLS            *tls.Config   // encrypts the connection; nil: it is not encrypted. An empty ServerName is the host of the address
	ConnectTimeout time.Duration // for one address, hello included; 0: 5 seconds
	OneShard       bool          // figures and lists are those of the shard that the client asks, in a cluster of several
	Retries        int           // further attempts of a call after a failure that may pass; 0: 3, below 0: none
}

func (o *Options) retries() int {
	switch {
	case o.Retries == 0:
		return retriesDefault
	case o.Retries < 0:
		return 0
	}
	return o.Retries
}

// Client speaks with a server over one connection at a time. Its methods can be called from many goroutines. A lost connection
// ends the calls under way on it; those that can be repeated go on over the next one.
type Client struct {
	options Options

	life   context.Context // ends with Close
	end    context.CancelFunc
	dialer chan struct{} // held by the one goroutine that connects

	lock      sync.Mutex
	addresses []string // those of Dial, and of primaries that members have named
	place     int      // in addresses: the one that worked last, or the next one to try
	current   *connection
	closed    bool
	work      sync.WaitGroup // all goroutines of the client
}

// Dial makes a Client and its first connection. addresses is "host:port", or several with commas between. It is "" for the variable
// DELAYSERVER_SERVER, or else for 127.0.0.1:20801. The client takes the first address that answers, stays with it while it works, and
// goes on at the next one when it fails.
//
// Servers that are not ready are asked again until ctx ends. Any other failure of all addresses is a *ConnectError.
func Dial(ctx context.Context, addresses string, options Options) (*Client, error) {
	if addresses == "" {
		addresses = os.Getenv(addressVariable)
	}
	if addresses == "" {
		addresses = defaultAddress
	}
	if options.ConnectTimeout == 0 {
		options.ConnectTimeout = connectTimeoutDefault
	}
	c := &Client{options: options, dialer: make(chan struct{}, 1)}
	for _, address := range strings.Split(addresses, ",") {
		if address = strings.TrimSpace(address); address == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("%q is no address of the form host:port: %w", address, err)
		}
		c.addresses = append(c.addresses, address)
	}
	if len(c.addresses) == 0 {
		return nil, fmt.Errorf("%q has no address: write host:port, or several with commas between", addresses)
	}
	c.life, c.end = context.WithCancel(context.Background())
	for attempt := 0; ; attempt++ {
		_, err := c.connection(ctx)
		if err == nil {
			return c, nil
		}
		var named *Error
		if !errors.As(err, &named) || !errors.Is(err, NotReady) {
			_ = c.Close()
			return nil, err
		}
		if ended := sleep(ctx, named.Pause(attempt)); ended != nil {
			_ = c.Close()
			return nil, &pausedError{err, ended}
		}
	}
}

// Close ends the connection, and waits until all goroutines of the client have ended. Calls under way return a NoReplyError.
// Leases of pulled messages go on, unless their Pull had an Outlive.
func (c *Client) Close() error {
	c.lock.Lock()
	c.closed = true
	current := c.current
	c.lock.Unlock()
	c.end()
	if current != nil {
		current.fail(ErrClosed)
	}
	c.work.Wait()
	return nil
}

// Server is what the server said at the beginning of the last connection. It is empty until the first one stands.
func (c *Client) Server() Server {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.current == nil {
		return Server{Limits: limitsDefault}
	}
	return c.current.server
}

// Address is the one of the last connection, or "".
func (c *Client) Address() string {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.current == nil {
		return ""
	}
	return c.current.address
}

// spawn starts a goroutine for which Close waits. It is false on a client that is closed.
func (c *Client) spawn(run func()) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.closed {
		return false
	}
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		run()
	}()
	return true
}

// standing is the current connection, or nil where it is lost.
func (c *Client) standing() (*connection, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.closed {
		return nil, &lostError{ErrClosed}
	}
	if c.current == nil || c.current.failure() != nil {
		return nil, nil
	}
	return c.current, nil
}

// connection is the current connection, or a new one: each address is tried once, the one that worked last first.
func (c *Client) connection(ctx context.Context) (*connection, error) {
	if current, err := c.standing(); current != nil || err != nil {
		return current, err
	}
	select {
	case c.dialer <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.life.Done():
		return nil, &lostError{ErrClosed}
	}
	defer func() { <-c.dialer }()
	if current, err := c.standing(); current != nil || err != nil {
		return current, err
	}
	failed := &ConnectError{}
	for range c.known() {
		address := c.next()
		made, err := c.connect(ctx, address)
		if err == nil {
			return made, nil
		}
		if c.life.Err() != nil {
			return nil, &lostError{ErrClosed}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		failed.Addresses, failed.Causes = append(failed.Addresses, address), append(failed.Causes, err)
		c.pass(address)
	}
	return nil, failed
}

func (c *Client) known() []string {
	c.lock.Lock()
	defer c.lock.Unlock()
	return append([]string(nil), c.addresses...)
}

func (c *Client) next() string {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.addresses[c.place]
}

// pass leaves an address that does not serve, if no other one was chosen meanwhile.
func (c *Client) pass(address string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.addresses[c.place] == address {
		c.place = (c.place + 1) % len(c.addresses)
	}
}

// leave goes on at the primary that a member has named, or else at the next address. What is under way on the connection ends there.
func (c *Client) leave(on *connection, err error) {
	var named *Error
	if !errors.As(err, &named) || named.Name != NotPrimary || !c.choose(on, named.Primary) {
		return
	}
	if !c.spawn(func() {
		select {
		case <-c.life.Done():
			on.fail(ErrClosed)
		case <-on.done:
		}
	}) {
		on.fail(ErrClosed)
	}
	on.retire()
}

// choose takes another address than that of a connection for the next one. It is false if there is none, or another call has chosen.
func (c *Client) choose(on *connection, primary string) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.current != on {
		return false
	}
	place := -1
	for index, address := range c.addresses {
		if address == primary {
			place = index
		}
	}
	_, _, wrong := net.SplitHostPort(primary)
	switch {
	case place >= 0:
		c.place = place
	case wrong == nil && len(c.addresses) < addressesMax:
		c.addresses = append(c.addresses, primary)
		c.place = len(c.addresses) - 1
	default:
		c.place = (c.place + 1) % len(c.addresses)
	}
	if c.addresses[c.place] == on.address {
		return false
	}
	c.current = nil
	return true
}

// connect makes the connection to one address the current one.
func (c *Client) connect(ctx context.Context, address string) (*connection, error) {
	limited, cancel := context.WithTimeout(ctx, c.options.ConnectTimeout)
	defer cancel()
	if !c.spawn(func() {
		select {
		case <-c.life.Done():
			cancel()
		case <-limited.Done():
		}
	}) {
		return nil, &lostError{ErrClosed}
	}
	made, err := connect(limited, address, &c.options, c.spawn)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = &lostError{fmt.Errorf("no answer within %v", c.options.ConnectTimeout)}
	}
	if err != nil {
		return nil, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.closed {
		made.fail(ErrClosed)
		return nil, &lostError{ErrClosed}
	}
	c.current = made
	return made, nil
}

// effect says what a second attempt of a request does.
type effect int

const (
	changesNothing effect = iota // the server only looks
	sameAsOnce                   // two have the effect of one
	notTwice                     // it is repeated only if the first attempt is known to have done nothing
)

// attempts runs try until it succeeds, at most Options.Retries times more. doubt is true if an earlier attempt may have been done.
func (c *Client) attempts(ctx context.Context, operation string, kind effect, try func(on *connection) error) (doubt bool, err error) {
	begun := time.Now()
	for attempt := 0; ; attempt++ {
		on, err := c.connection(ctx)
		if err != nil {
			err = &NoReplyError{Operation: operation, Cause: err}
		} else if err = try(on); err == nil {
			return doubt, nil
		} else {
			c.leave(on, err)
		}
		unknown := kind != changesNothing && mayBeDone(err)
		pause, again := c.pause(err, attempt, time.Since(begun) < takeoverMax)
		if unknown && kind == notTwice {
			again = false
		}
		if again {
			if ended := sleep(ctx, pause); ended != nil {
				err, again = &pausedError{err, ended}, false
			}
		}
		if !again {
			return doubt || unknown, inDoubt(operation, err, doubt)
		}
		doubt = doubt || unknown
	}
}

// inDoubt is the error of the last attempt. Where an earlier attempt may have been done, it says so.
func inDoubt(operation string, err error, doubt bool) error {
	if !doubt || mayBeDone(err) {
		return err
	}
	return &NoReplyError{Operation: operation, MaybeDone: true, Cause: err}
}

// mayBeDone reports whether the request of an attempt that ended with err can have been carried out.
func mayBeDone(err error) bool {
	var without *NoReplyError
	if errors.As(err, &without) {
		return without.MaybeDone
	}
	var named *Error
	return errors.As(err, &named) && (named.Name == InternalError || named.Name == InDoubt || named.Name == StorageFailed && named.RetryAfter == 0)
}

// pause is how long to wait before the next attempt, and whether there is one. looks: while a cluster has no primary, the attempts do
// not count.
func (c *Client) pause(err error, attempt int, looks bool) (time.Duration, bool) {
	for _, final := range []error{ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, final) {
			return 0, false
		}
	}
	pause, again := pauseAfter(err, attempt)
	counts := attempt < c.options.retries() || looks && c.options.retries() > 0 && c.changes(err)
	return pause, again && counts && pause <= retryAfterMax+pauseMax
}

// changes reports whether err can be that of a cluster whose primary changes now.
func (c *Client) changes(err error) bool {
	return errors.Is(err, NotPrimary) || errors.Is(err, ErrConnectionLost) && len(c.known()) > 1
}

func pauseAfter(err error, attempt int) (pause time.Duration, again bool) {
	var none *ConnectError
	if errors.As(err, &none) {
		for _, cause := range none.Causes {
			if next, passes := pauseAfter(cause, attempt); passes {
				again = true
				if next > pause {
					pause = next
				}
			}
		}
		return pause, again
	}
	var named *Error
	if errors.As(err, &named) {
		return named.Pause(attempt), named.Again()
	}
	var network net.Error
	return (&Error{}).Pause(attempt), errors.Is(err, ErrConnectionLost) || errors.As(err, &network)
}

// call makes one request, and decodes its result. It repeats as kind allows.
func (c *Client) call(ctx context.Context, kind effect, operation string, arguments map[string]any, result any) error {
	_, err := c.attempts(ctx, operation, kind, func(on *connection) error {
		if ofAllShards[operation] && on.server.Shards > 1 && !c.options.OneShard {
			return ErrSeveralShards
		}
		return on.call(ctx, operation, arguments, result)
	})
	return err
}

// ofAllShards are the operations whose answer of one shard would be taken for that of all.
var ofAllShards = map[string]bool{
	"pending": true, "subjects": true, "groups": true, "group": true, "find": true, "read": true, "dead_letters": true, "transactions": true,
}

// ask is call for a result that stands alone.
func ask[T any](ctx context.Context, c *Client, kind effect, operation string, arguments map[string]any) (*T, error) {
	result := new(T)
	if err := c.call(ctx, kind, operation, arguments, result); err != nil {
		return nil, err
	}
	return result, nil
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ping returns the server's clock. It is always answered.
func (c *Client) Ping(ctx context.Context) (time.Time, error) {
	var look reading
	_, err := c.attempts(ctx, "ping", changesNothing, func(on *connection) (err error) {
		look, err = on.pingReading(ctx)
		return err
	})
	return time.UnixMicro(look.serverUs), err
}

// resolve turns delays into due times by the server's clock, all from one moment.
func (c *Client) resolve(ctx context.Context, delays ...time.Duration) ([]int64, error) {
	nowUs := localUs()
	var look reading
	_, err := c.attempts(ctx, "ping", changesNothing, func(on *connection) (err error) {
		look, err = on.clockNow(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	result := make([]int64, len(delays))
	for row, delay := range delays {
		result[row] = look.dueMs(nowUs, ceilMs(delay))
	}
	return result, nil
}

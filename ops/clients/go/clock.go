package delayserver

// The server's clock, read over the connection. A delay becomes a due time here, once.

import (
	"context"
	"time"
)

const (
	readingAgeMax  = time.Minute
	roundTripMax   = 100 * time.Millisecond
	clocksApartMax = time.Second
	readingsMore   = 2
)

// reading is one look at the server's clock.
type reading struct {
	sentUs   int64 // local clock, as the request left
	serverUs int64
	tripUs   int64     // until the reply
	wall     time.Time // local wall clock at sentUs, without a monotonic part
}

// dueMs is when a delay from nowUs (local clock) ends by the server's clock. It is never early.
func (r reading) dueMs(nowUs, delayMs int64) int64 {
	serverUs := nowUs + r.serverUs - r.sentUs
	due := serverUs / 1000
	if serverUs%1000 > 0 {
		due++
	}
	return due + delayMs
}

// fresh reports whether a due time can be made with the reading. A local clock that slept shows beside the wall clock.
func (r reading) fresh(nowUs int64, wall time.Time) bool {
	age := time.Duration(nowUs-r.sentUs) * time.Microsecond
	apart := wall.Sub(r.wall) - age
	return age < readingAgeMax && apart < clocksApartMax && apart > -clocksApartMax
}

func ceilMs(duration time.Duration) int64 {
	count := int64(duration / time.Millisecond)
	if duration%time.Millisecond > 0 {
		count++
	}
	return count
}

func ceilUnixMs(moment time.Time) int64 {
	count := moment.UnixMilli()
	if moment.Nanosecond()%int(time.Millisecond) > 0 {
		count++
	}
	return count
}

// readClock pings up to tries times, until a round trip is short, and keeps the shortest reading. A zero best is none.
// A reading from before a step of the server's clock does not count.
func (c *connection) readClock(ctx context.Context, best reading, tries int) (reading, error) {
	for ; tries > 0 && (best.tripUs == 0 || best.tripUs > roundTripMax.Microseconds()); tries-- {
		before := c.stepCount()
		next, err := c.pingReading(ctx)
		if err != nil {
			return reading{}, err
		}
		if c.stepCount() != before {
			best = reading{}
		}
		if best.tripUs == 0 || next.tripUs < best.tripUs {
			best = next
		}
	}
	return best, nil
}

func (c *connection) stepCount() int {
	c.clockLock.Lock()
	defer c.clockLock.Unlock()
	return c.steps
}

func (c *connection) pingReading(ctx context.Context) (reading, error) {
	look := reading{sentUs: localUs(), wall: time.Now().Round(0)}
	var pong struct {
		ServerUs int64 `msgpack:"server_us"`
	}
	if err := c.call(ctx, "ping", map[string]any{}, &pong); err != nil {
		return reading{}, err
	}
	look.serverUs = pong.ServerUs
	look.tripUs = localUs() - look.sentUs + 1
	return look, nil
}

// clockNow is a reading that is fresh now. A step during the reading makes it one for this call alone.
func (c *connection) clockNow(ctx context.Context) (reading, error) {
	c.clockLock.Lock()
	look, before := c.clock, c.steps
	c.clockLock.Unlock()
	if look.tripUs != 0 && look.fresh(localUs(), time.Now().Round(0)) {
		return look, nil
	}
	look, err := c.readClock(ctx, reading{}, 1+readingsMore)
	if err != nil {
		return reading{}, err
	}
	c.clockLock.Lock()
	if c.steps == before {
		c.clock = look
	}
	c.clockLock.Unlock()
	return look, nil
}

package delayserver

import (
	"errors"
	"fmt"
	"math/rand"
	"time"
)

// ErrorName is the name of an error of a server. It is an error itself, so errors.Is(err, TooOld) asks for it.
type ErrorName string

func (n ErrorName) Error() string { return string(n) }

// Names of errors of a server. A name that is not here is final.
const (
	MalformedFrame     ErrorName = "malformed_frame"
	MalformedRequest   ErrorName = "malformed_request"
	FrameTooLarge      ErrorName = "frame_too_large"
	FrameTimeout       ErrorName = "frame_timeout"
	UnknownOperation   ErrorName = "unknown_operation"
	UnsupportedVersion ErrorName = "unsupported_version"
	InvalidArgument    ErrorName = "invalid_argument"
	BatchTooLarge      ErrorName = "batch_too_large"
	MessageTooLarge    ErrorName = "message_too_large"
	SubjectInvalid     ErrorName = "subject_invalid"
	MessageIDInvalid   ErrorName = "message_id_invalid"
	PropertiesInvalid  ErrorName = "properties_invalid"
	TooFar             ErrorName = "too_far"
	TooOld             ErrorName = "too_old"
	ReceiptInvalid     ErrorName = "receipt_invalid"
	ForeignReceipt     ErrorName = "foreign_receipt"
	NotRouted          ErrorName = "not_routed"
	SubjectsFull       ErrorName = "subjects_full"
	TagsFull           ErrorName = "tags_full"
	FilterInvalid      ErrorName = "filter_invalid"
	GroupsFull         ErrorName = "groups_full"
	TransactionUnknown ErrorName = "transaction_unknown"
	TransactionEnded   ErrorName = "transaction_ended"
	ScheduleUnknown    ErrorName = "schedule_unknown"
	SchedulesFull      ErrorName = "schedules_full"
	FilterInUse        ErrorName = "filter_in_use"
	QueueFull          ErrorName = "queue_full"
	TooManyConnections ErrorName = "too_many_connections"
	NotReady           ErrorName = "not_ready"
	KeysIncomplete     ErrorName = "keys_incomplete"
	ShuttingDown       ErrorName = "shutting_down"
	DiskFull           ErrorName = "disk_full"
	StorageFailed      ErrorName = "storage_failed"
	MessageDamaged     ErrorName = "message_damaged"
	DeadlinePassed     ErrorName = "deadline_passed"
	GroupUnknown       ErrorName = "group_unknown"
	PositionOutOfRange ErrorName = "position_out_of_range"
	PolicyInvalid      ErrorName = "policy_invalid"
	ConfigInvalid      ErrorName = "config_invalid"
	PublishedElsewhere ErrorName = "published_elsewhere"
	Unauthenticated    ErrorName = "unauthenticated"
	Forbidden          ErrorName = "forbidden"
	RateLimited        ErrorName = "rate_limited"
	ServerNotProven    ErrorName = "server_not_proven"
	Superseded         ErrorName = "superseded"
	DuplicateServerID  ErrorName = "duplicate_server_id"
	NotDue             ErrorName = "not_due"
	NotPrimary         ErrorName = "not_primary"
	WrongShard         ErrorName = "wrong_shard"
	LogUnavailable     ErrorName = "log_unavailable"
	InDoubt            ErrorName = "in_doubt"
	InternalError      ErrorName = "internal_error"
)

// again holds the names after which the same request can succeed over a new or the same connection.
var again = map[ErrorName]bool{
	FrameTimeout: true, FilterInUse: true, QueueFull: true, TooManyConnections: true, NotReady: true, KeysIncomplete: true,
	ShuttingDown: true, DiskFull: true, StorageFailed: true, RateLimited: true, Superseded: true, DuplicateServerID: true, NotDue: true,
	NotPrimary: true, WrongShard: true, LogUnavailable: true, InDoubt: true,
}

const (
	pauseFirst = 50 * time.Millisecond
	pauseMax   = 2 * time.Second
)

// Error is what a server answers in place of a result. A program decides by Name; Message is for people.
type Error struct {
	Name       ErrorName
	Message    string
	RetryAfter time.Duration // 0 where the server gave none

	// Of some names alone.
	Primary              string // NotPrimary: where the primary answers, host:port; empty where the member does not know
	Outcome              string // TransactionEnded: how it ended
	First, End           int64  // PositionOutOfRange: the first position kept, and where the next message goes
	Line, Column, Offset int    // FilterInvalid: the place of the first fault; the offset is in characters
}

func (e *Error) Error() string { return string(e.Name) + ": " + e.Message }

// Is reports whether target is the name of e, or an *Error of the same name.
func (e *Error) Is(target error) bool {
	if name, ok := target.(ErrorName); ok {
		return name == e.Name
	}
	other, ok := target.(*Error)
	return ok && other.Name == e.Name
}

// Again reports whether the same request, unchanged, can succeed later.
func (e *Error) Again() bool { return again[e.Name] }

// Pause is how long to wait before try number attempt (from 0) of the same request: RetryAfter and a random part.
func (e *Error) Pause(attempt int) time.Duration {
	bound := pauseFirst
	for ; attempt > 0 && bound < pauseMax; attempt-- {
		bound *= 2
	}
	if bound > pauseMax {
		bound = pauseMax
	}
	return e.RetryAfter + time.Duration(rand.Int63n(int64(bound)))
}

// NameOf is the name of the server's error in err, or "".
func NameOf(err error) ErrorName {
	var named *Error
	if errors.As(err, &named) {
		return named.Name
	}
	return ""
}

var (
	// ErrConnectionLost is in every error that a lost connection causes.
	ErrConnectionLost = errors.New("the connection is lost")
	errRetired        = errors.New("the client has gone to another server")
	// ErrClosed is in the errors of calls on a Client that was closed by its owner.
	ErrClosed = errors.New("the client is closed")

	// ErrSeveralShards ends a call about what all shards of a cluster have: this client asks one. Options.OneShard allows it.
	ErrSeveralShards = errors.New("the cluster has several shards, and this client asks one of them: set OneShard for what that one has")
)

// NoReplyError says that a request has no reply: the connection was lost, no server answered, or the caller's context ended.
// It also stands around the error of a last attempt, where an earlier one had no reply: then MaybeDone is true.
type NoReplyError struct {
	Operation string
	MaybeDone bool  // the server may have carried the request out; false: it has not
	Cause     error // ErrConnectionLost with its reason, a *ConnectError, the context's error, or the error of a later attempt
}

func (e *NoReplyError) Error() string {
	if e.MaybeDone {
		return fmt.Sprintf("%s has no reply and may have been done: %v", e.Operation, e.Cause)
	}
	return fmt.Sprintf("%s was not sent: %v", e.Operation, e.Cause)
}

func (e *NoReplyError) Unwrap() error { return e.Cause }

// lostError is ErrConnectionLost with its reason: of the network, of the server (id 0), or ErrClosed.
type lostError struct{ reason error }

func (e *lostError) Error() string        { return ErrConnectionLost.Error() + ": " + e.reason.Error() }
func (e *lostError) Is(target error) bool { return target == ErrConnectionLost }
func (e *lostError) Unwrap() error        { return e.reason }

// ConnectError says that none of the addresses of a Client led to a server that serves it. errors.Is and errors.As look through the
// reasons of all addresses.
type ConnectError struct {
	Addresses []string
	Causes    []error // one for each address
}

func (e *ConnectError) Error() string {
	text := "no server answers"
	for index, cause := range e.Causes {
		text += fmt.Sprintf("; %s: %v", e.Addresses[index], cause)
	}
	return text
}

// Is reports whether the reason of one of the addresses is target. Every ConnectError is ErrConnectionLost.
func (e *ConnectError) Is(target error) bool {
	for _, cause := range e.Causes {
		if errors.Is(cause, target) {
			return true
		}
	}
	return target == ErrConnectionLost
}

// As finds the first reason that is of the type of target.
func (e *ConnectError) As(target any) bool {
	for _, cause := range e.Causes {
		if errors.As(cause, target) {
			return true
		}
	}
	return false
}

// pausedError is the error of an attempt behind which the context ended, before the next attempt. It is both errors.
type pausedError struct{ last, ended error }

func (e *pausedError) Error() string        { return e.last.Error() + " (then: " + e.ended.Error() + ")" }
func (e *pausedError) Is(target error) bool { return errors.Is(e.ended, target) }
func (e *pausedError) Unwrap() error        { return e.last }
